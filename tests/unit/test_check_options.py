"""Options of a check: defaults by kind of subject, and what is refused with which words."""

from __future__ import annotations

import dataclasses
import json

import pytest

from cftdiag.errors import InputError
from cftdiag.options import DEFAULT_LENGTHS, CheckOptions


def test_defaults_of_a_config_model():
    o = CheckOptions(model="Qwen3-4B").for_config()
    assert (o.subject.attn, o.subject.dtype, o.compile.dynamic, o.compile.fullgraph) == (
        "sdpa",
        "bfloat16",
        "true",
        True,
    )
    assert (o.subject.lengths, o.subject.batch_size, o.subject.layers) == (DEFAULT_LENGTHS, 1, "all")


def test_what_is_given_is_kept():
    o = CheckOptions(model="x", dtype="fp32", dynamic="auto", lengths=[5, 7], layers=3).for_config()
    assert (o.subject.dtype, o.compile.dynamic, o.subject.lengths, o.subject.layers) == (
        "float32",
        "auto",
        (5, 7),
        "3",
    )


@pytest.mark.parametrize(
    "given, said",
    [
        ({"attn": "flash"}, "attn 'flash' is unknown; use one of sdpa"),
        ({"dtype": "int8"}, "dtype 'int8' is unknown"),
        ({"dynamic": "maybe"}, "dynamic 'maybe' is unknown"),
        ({"lengths": ()}, "no lengths given"),
        ({"lengths": (512, 0)}, "length 0 must be a positive whole number"),
        ({"lengths": (512, -3)}, "length -3 must be"),
        ({"lengths": (512.5,)}, "length 512.5 must be"),
        ({"batch_size": 0}, "batch_size 0 must be"),
        ({"world_size": True}, "world_size True must be"),
        ({"timeout": 0}, "timeout 0 must be"),
        ({"layers": "some"}, "layers 'some' is not"),
        ({"layers": 0}, "layers '0' is not"),
        ({"packed": True, "batch_size": 2}, "one row, but the batch size is 2"),
        (
            {"objective": "grpo", "world_size": 2},
            "--objective grpo is trained by one process; drop --world-size",
        ),
        ({"target": "tpu"}, "target 'tpu' is unknown"),
        ({"target": "h200", "fast_forward": "never"}, "generated and not run"),
        ({"target": "h200", "compile_backend": "eager"}, "lowers with Inductor"),
    ],
)
def test_bad_input_is_refused_in_one_line(given, said):
    with pytest.raises(InputError) as error:
        CheckOptions(model="x", **given)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {"attn": "eager"},
        {"dtype": "fp16"},
        {"lengths": (8,)},
        {"batch_size": 2},
        {"layers": 2},
        {"packed": True},
    ],
)
def test_a_subject_refuses_what_only_a_built_model_can_follow(given):
    with pytest.raises(InputError, match="does not apply to a model that build"):
        CheckOptions(**given).for_subject()


def test_options_cross_a_process_border():
    o = CheckOptions(
        model="x",
        lengths=(5,),
        env={"A": "1"},
        torch_config={"torch._dynamo.config.verbose": True},
        mark_dynamic={"x": [1]},
    )
    assert CheckOptions.from_dict(json.loads(json.dumps(o.to_dict()))) == o


def test_a_change_by_flat_name_leaves_the_rest_and_is_checked_again():
    o = CheckOptions(model="x", compile_scope="model", data="lengths.txt", env={"A": "1"})
    changed = o.with_(compile_backend="eager", data=None, lengths=[5])
    assert (changed.compile.backend, changed.data.path, changed.subject.lengths) == ("eager", None, (5,))
    assert changed.with_(compile_backend=None, data="lengths.txt", lengths=None) == o
    with pytest.raises(InputError, match="--data brings its own lengths"):
        o.with_(lengths=(5,))


def test_every_option_has_one_flat_name():
    flat = CheckOptions().flat()
    given = {"compile_scope", "compile_backend", "data", "model", "world_size", "timeout", "torch_config"}
    assert given <= set(flat) and not {"scope", "backend", "path"} & set(flat)
    groups = dataclasses.asdict(CheckOptions()).values()
    assert len(flat) == sum(map(len, groups))


@pytest.mark.parametrize("name", ["attention", "scope", "subject"])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        CheckOptions(**{name: "model"})
