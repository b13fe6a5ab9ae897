"""Options of a check: defaults by kind of subject, and what is refused with which words."""

from __future__ import annotations

import json

import pytest

from cftdiag.errors import InputError
from cftdiag.options import DEFAULT_LENGTHS, CheckOptions


def test_defaults_of_a_config_model():
    o = CheckOptions(model="Qwen3-4B").for_config()
    assert (o.attn, o.dtype, o.dynamic, o.fullgraph) == ("sdpa", "bfloat16", "true", True)
    assert (o.lengths, o.batch_size, o.layers) == (DEFAULT_LENGTHS, 1, "all")


def test_what_is_given_is_kept():
    o = CheckOptions(model="x", dtype="fp32", dynamic="auto", lengths=[5, 7], layers=3).for_config()
    assert (o.dtype, o.dynamic, o.lengths, o.layers) == ("float32", "auto", (5, 7), "3")


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
