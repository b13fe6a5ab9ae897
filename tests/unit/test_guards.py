"""The grammar of guards: every form that torch 2.13 and 2.14 print is read into what it tests.

The forms are those of ``torch/_dynamo/guards.py`` (one for each method of ``GuardBuilder``),
``torch/csrc/dynamo/guards.cpp`` (sentences) and ``torch/fx/experimental/symbolic_shapes.py`` (shapes).
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from cftdiag import guards
from cftdiag.conditions import MISSING, STAGES, Condition, Term
from cftdiag.events import Event, Guard


def size(source: str, index: int) -> Term:
    return Term(source=source, what="size", index=index)


#: (text, stage at which torch checks it, what else is read).
FORMS: list[tuple[str, str, dict[str, Any]]] = [
    # values
    (
        "s.step == 0",
        "value",
        {"kind": "value", "source": "s.step", "root": "s", "path": ".step", "expected": 0},
    ),
    ("L['self'].layer_idx == 3", "value", {"kind": "value", "source": "self.layer_idx", "expected": 3}),
    ("k == 0.5", "value", {"kind": "value", "root": "k", "path": "", "expected": 0.5}),
    ("k == -1", "value", {"kind": "value", "expected": -1}),
    ("k == 'a'", "value", {"kind": "value", "expected": "a"}),
    ("k == torch.float32", "value", {"kind": "value", "expected": "torch.float32"}),
    ("k == device(type='cpu')", "value", {"kind": "value", "expected": "device(type='cpu')"}),
    ("s.win == (1, 2)", "value", {"kind": "value", "expected": (1, 2)}),
    ("___stack0 == True", "value", {"kind": "value", "root": "___stack0", "expected": True}),
    ("___stack2[1] == 4", "value", {"kind": "value", "root": "___stack2", "path": "[1]", "expected": 4}),
    ("int(s.mode) == 3", "value", {"kind": "value", "source": "s.mode", "expected": 3}),
    ("(type(k) is float and __math_isnan(k))", "value", {"kind": "value", "source": "k"}),
    ("___normalize_range_iter(r) == (0, 3, 1)", "value", {"kind": "value", "source": "r"}),
    ("G['Cfg'].scale == 2.0", "value", {"root": "G", "global_name": "Cfg", "attributes": ("scale",)}),
    ("G['TABLE']['a'] == 1", "value", {"root": "G", "global_name": "TABLE", "attributes": ()}),
    ("dict(type(s).__dict__)['k'] == 1", "value", {"through": "class", "root": "s", "expected": 1}),
    ("self.param_groups[0]['lr'] == 0.001", "value", {"through": "optimizer", "expected": 0.001}),
    ("fn.__closure__[0].cell_contents == 1", "value", {"through": "closure", "expected": 1}),
    # numbers in arithmetic: a float attribute that turned into a symbol
    ("(1.0 + -1*s.p) == 0.95", "shape", {"kind": "value", "form": "relation", "source": "s.p"}),
    ("2 <= k", "shape", {"kind": "value", "form": "bound", "source": "k", "low": 2, "high": None}),
    ("3 != k", "shape", {"kind": "value", "form": "exclusion", "source": "k", "expected": 3}),
    # None
    ("s.cache is None", "value", {"kind": "none", "negated": False, "source": "s.cache", "expected": None}),
    (
        "L['mask'] is not None",
        "value",
        {"kind": "none", "negated": True, "source": "mask", "expected": MISSING},
    ),
    # containers and attributes
    ("len(d) == 1", "value", {"kind": "length", "source": "d", "expected": 1}),
    ("len(d) != 1", "value", {"kind": "length", "source": "d", "negated": True, "expected": 1}),
    ("not d", "value", {"kind": "length", "source": "d", "expected": 0}),
    (
        "len(mask_fn.__closure__[0].cell_contents) == 1",
        "value",
        {
            "kind": "length",
            "through": "closure",
            "source": "mask_fn.__closure__[0].cell_contents",
            "expected": 1,
        },
    ),
    ("___tuple_iterator_len(it) == 2", "value", {"kind": "length", "source": "it", "expected": 2}),
    ("list(dict.keys(d)) == ['a', 'b']", "value", {"kind": "keys", "source": "d", "expected": ["a", "b"]}),
    ("list(dict.keys(d))[0] == 'a'", "value", {"kind": "keys", "source": "d"}),
    ("list(d.keys()) == ['a']", "value", {"kind": "keys", "source": "d", "expected": ["a"]}),
    ("___dict_version(d) == 7", "value", {"kind": "keys", "source": "d"}),
    ("___dict_contains('a', d)", "value", {"kind": "contains", "source": "d", "key": "a", "negated": False}),
    ("not ___dict_contains('a', d)", "value", {"kind": "contains", "key": "a", "negated": True}),
    (
        "not ___dict_contains('cc', s.__dict__)",
        "value",
        {"kind": "attribute", "source": "s.cc", "negated": True},
    ),
    ("set.__contains__(s.names, 'a')", "value", {"kind": "contains", "source": "s.names", "key": "a"}),
    ("not set.__contains__(s.names, 'a')", "value", {"kind": "contains", "negated": True}),
    ("'a' in d", "value", {"kind": "contains", "source": "d", "key": "a"}),
    ("hasattr(s, 'cc')", "value", {"kind": "attribute", "source": "s.cc", "negated": False}),
    (
        "not hasattr(s, 'cc')",
        "value",
        {"kind": "attribute", "source": "s.cc", "path": ".cc", "negated": True},
    ),
    ("KeyError on s._modules['mamba']", "type", {"kind": "contains", "absent": True}),
    ("IndexError on xs[2]", "type", {"kind": "contains", "source": "xs[2]", "absent": True}),
    ("getattr failed on source x.y", "type", {"kind": "contains", "source": "x.y", "absent": True}),
    # objects
    ("x is y", "value", {"kind": "alias", "source": "x", "negated": False}),
    (
        "Duplicate tensor found where not expected! x should not alias to anything",
        "value",
        {"kind": "alias", "negated": True},
    ),
    (
        "___check_obj_id(f.__code__, 140501683082368), type=<class 'code'>",
        "identity",
        {"kind": "identity", "through": "closure", "source": "f.__code__", "expected": "code"},
    ),
    (
        "___check_type_id(f, 94159), type=<class 'm.A'>",
        "type",
        {"kind": "type", "source": "f", "expected": "m.A"},
    ),
    ("___check_fake_script_type(f, 94), type=<class 'm.A'>", "type", {"kind": "type", "source": "f"}),
    ("__check_obj_id(list(d.keys())[0], 12)", "identity", {"kind": "identity"}),
    # tensors
    (
        "tensor 'x' size mismatch at index 1. expected 5, actual 6",
        "size",
        {"kind": "size", "source": "x", "index": 1, "expected": 5, "actual": 6, "terms": (size("x", 1),)},
    ),
    (
        "tensor 'x' stride mismatch at index 0. expected 6, actual 1",
        "stride",
        {"kind": "stride", "index": 0, "expected": 6, "actual": 1, "form": ""},
    ),
    (
        "tensor 'x' requires_grad mismatch. expected requires_grad=0",
        "requires_grad",
        {"kind": "requires_grad", "expected": False, "actual": True},
    ),
    (
        "tensor 's._modules['p']._parameters['weight']' requires_grad mismatch. expected requires_grad=1. "
        "Guard failed on a parameter, consider using torch._dynamo.config.x",
        "requires_grad",
        {"source": "s._modules['p']._parameters['weight']", "expected": True, "actual": False},
    ),
    (
        "tensor 'x' dtype mismatch. expected Float, actual BFloat16",
        "dtype",
        {"kind": "dtype", "expected": "Float", "actual": "BFloat16"},
    ),
    ("tensor 'x' rank mismatch. expected 2, actual 1", "rank", {"kind": "rank", "expected": 2, "actual": 1}),
    (
        "tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CPU, A), actual DispatchKeySet(CPU)",
        "dispatch_key",
        {"kind": "dispatch", "expected": "DispatchKeySet(CPU, A)", "actual": "DispatchKeySet(CPU)"},
    ),
    (
        "Tensor 'x' device index mismatch. Expected device index to be 0, but got 1",
        "device",
        {"kind": "device", "source": "x", "expected": 0, "actual": 1},
    ),
    (  # as torch 2.15 words it
        "expected type of 'x' to be <class 'torch.Tensor'>, but found <class 'a.b.AsyncCollectiveTensor'>",
        "type",
        {"kind": "tensor_type", "source": "x"},
    ),
    (
        "expected type of 'm' to be a tensor type, ' but found <class 'NoneType'>",
        "type",
        {"kind": "tensor_type", "source": "m", "value_type": "NoneType"},
    ),
    (
        "expected type of 'kwargs['m']' to be <class 'torch.Tensor'>, but found <class 'NoneType'>",
        "type",
        {"kind": "tensor_type", "source": "kwargs['m']", "value_type": "NoneType"},
    ),
    ("str(x.dtype) == 'torch.float32'", "dtype", {"kind": "dtype", "source": "x", "expected": "float32"}),
    ("str(x.device) == 'cpu'", "device", {"kind": "device", "source": "x"}),
    (
        "x.requires_grad == False",
        "requires_grad",
        {"kind": "requires_grad", "source": "x", "expected": False},
    ),
    ("x.ndimension() == 2", "rank", {"kind": "rank", "source": "x", "expected": 2}),
    ("k.raw_repr() == DispatchKeySet(CPU).raw_repr()", "dispatch_key", {"kind": "dispatch", "source": "k"}),
    ("hasattr(x, '_dynamo_dynamic_indices') == False", "value", {"kind": "marking", "source": "x"}),
    (
        "((getattr(x, '_dynamo_dynamic_indices', set()).issubset({1})) if hasattr(x, '_dynamo_dynamic_indices') else True)",
        "value",
        {"kind": "marking", "source": "x"},
    ),
    (
        "check_tensor(L['x'], Tensor, DispatchKeySet(CPU, A), torch.float32, device=None, requires_grad=True, "
        "size=[None, 5], stride=[5, 1])",
        "type",
        {"kind": "tensor_type", "source": "x", "expected": "Tensor"},
    ),
    # shapes
    (
        "x.size()[1] == 5",
        "shape",
        {"kind": "shape", "form": "fixed", "source": "x", "index": 1, "expected": 5},
    ),
    ("12 != x.size()[1]", "shape", {"kind": "shape", "form": "exclusion", "index": 1, "expected": 12}),
    ("x.size()[0] != 1", "shape", {"form": "exclusion", "expected": 1}),
    ("(x.size()[1] % 8) == 0", "shape", {"kind": "shape", "form": "multiple", "index": 1, "multiple": 8}),
    ("(x.size()[1] % 8) != 0", "shape", {"form": "multiple", "multiple": 8, "negated": True}),
    ("Eq(Mod(x.size()[1], 16), 0)", "shape", {"form": "multiple", "multiple": 16}),
    ("2 <= x.size()[0]", "shape", {"form": "bound", "source": "x", "index": 0, "low": 2, "high": None}),
    ("x.size()[0] <= 9", "shape", {"form": "bound", "low": None, "high": 9}),
    ("1 < x.size()[0]", "shape", {"form": "bound", "low": 2}),
    ("2 <= x.size()[1] <= 1024", "shape", {"form": "range", "low": 2, "high": 1024}),
    (
        "y.size()[0] == x.size()[1]",
        "shape",
        {"form": "equal", "source": "y", "index": 0, "terms": (size("y", 0), size("x", 1))},
    ),
    ("Ne(x.size()[0], y.size()[0])", "shape", {"form": "equal", "negated": True}),
    (
        "4096*x.size()[0]*x.size()[1] < 5242880",
        "shape",
        {"form": "relation", "terms": (size("x", 0), size("x", 1))},
    ),
    ("max(1, x.size()[1]) == 7", "shape", {"form": "relation", "source": "x", "index": 1}),
    ("math.floor(float(x.size()[1])/2) <= 3", "shape", {"form": "relation", "source": "x"}),
    ("x.size()[0] > 1 and x.size()[1] % 8 == 0", "shape", {"kind": "shape", "source": "x"}),
    ("kwargs['mask'].size()[2] == 4", "shape", {"form": "fixed", "source": "kwargs['mask']", "index": 2}),
    (
        "x.stride()[0] == 8*x.size()[1]",
        "shape",
        {"kind": "stride", "form": "equal", "source": "x", "index": 0},
    ),
    ("8*x.size()[1] == x.stride()[0]", "shape", {"kind": "stride", "source": "x", "index": 0}),
    (
        "y.storage_offset() == x.size()[1]",
        "shape",
        {"kind": "shape", "form": "equal", "source": "x", "index": 1},
    ),
    ("y.storage_offset() == 3", "shape", {"kind": "storage_offset", "form": "fixed", "expected": 3}),
    ("'NoneType' object has no attribute 'size'", "value", {"kind": "none", "value_type": "NoneType"}),
    # global state
    ("GLOBAL_STATE changed: grad_mode ", "global_state", {"kind": "state", "key": "grad_mode"}),
    (
        "GLOBAL_STATE changed: num_threads default_dtype ",
        "global_state",
        {"key": "num_threads default_dtype"},
    ),
    ('___check_global_state() against {"grad_mode":true}', "global_state", {"kind": "state"}),
    ("___check_torch_function_mode_stack()", "global_state", {"kind": "state"}),
    ("utils_device.CURRENT_DEVICE == None", "global_state", {"kind": "state"}),
    ("torch.autograd.forward_ad._current_level == -1", "global_state", {"kind": "state"}),
    ("torch._functorch.pyfunctorch.compare_functorch_state([])", "global_state", {"kind": "state"}),
    (
        "torch._functorch.aot_autograd.utils.top_saved_tensors_hooks ids == None",
        "global_state",
        {"kind": "state"},
    ),
    # the rest
    (
        "BACKEND_MATCH failure: torch.compile detected different backend callables.",
        "other",
        {"kind": "backend"},
    ),
    (
        "self.a == self.b == 3",
        "shape",
        {
            "kind": "value",
            "form": "equal",
            "terms": (Term(source="self.a", what="value"), Term(source="self.b", what="value")),
        },
    ),
    ("foo(x) == 3", "value", {"kind": "value", "source": "foo(x)", "expected": 3}),
    ("something new in torch 3", "other", {"kind": "other", "source": ""}),
    ("", "other", {"kind": "other"}),
]


@pytest.mark.parametrize(("text", "stage", "facts"), FORMS, ids=[text[:60] for text, _, _ in FORMS])
def test_every_form_is_read(text: str, stage: str, facts: dict[str, Any]) -> None:
    read = guards.read(text)
    assert {name: getattr(read, name) for name in facts} == facts
    # True == 1 in Python: the type matters for the cause.
    assert all(isinstance(getattr(read, name), type(value)) for name, value in facts.items())
    assert read.stage == stage and stage in STAGES


def test_a_presence_is_no_shape_and_never_closer_than_a_size() -> None:
    none = guards.read("L['mask'] is not None").stage
    assert STAGES.index(none) < STAGES.index(guards.read(FORMS[0][0].replace("s.step", "x.size()[0]")).stage)


def test_a_condition_survives_pickling_and_copying() -> None:
    guard = Guard.of("dict(type(s).__dict__)['k'] == torch.float32")
    for again in (pickle.loads(pickle.dumps(guard)), copy.deepcopy(guard)):
        assert again.condition == guard.condition
        assert again.condition.actual is MISSING


def test_the_events_json_holds_what_torch_said_and_the_condition_is_read_again() -> None:
    guard = Guard.of("tensor 'x' size mismatch at index 1. expected 5, actual 6", "b.py:3 in forward")
    event = Event(kind="recompile", time=0.0, guard=guard)
    told = event.to_dict()["guard"]
    assert told == {
        "expression": "tensor 'x' size mismatch at index 1. expected 5, actual 6",
        "source": "L['x'].size()[1]",
        "added": "b.py:3 in forward",
        "expected": "5",
        "actual": "6",
        "value_type": "Tensor",
        "owner": None,
    }
    again = Event.from_dict(event.to_dict()).guard
    assert again is not None and again == guard and again.condition == guard.condition


def test_values_of_the_recorder_fill_what_the_text_leaves_open() -> None:
    told = Guard(
        expression="s.window == 4", source="L['s'].window", expected="4", actual="None", value_type="NoneType"
    )
    assert told.condition.actual is None and told.condition.knows("actual")
    assert not Guard(expression="s.window == 4").condition.knows("actual")
    assert Guard(expression="odd", source="L['s'].window").condition.source == "s.window"


def test_a_renamed_argument_is_renamed_in_its_terms_too() -> None:
    read = guards.read("args[0].size()[1] == args[1].size()[0]").renamed("args[0]", "x")
    assert (read.source, read.text) == ("x", "x.size()[1] == args[1].size()[0]")
    assert [term.source for term in read.terms] == ["x", "args[1]"]
    assert guards.read("args[10] == 1").renamed("args[1]", "x").source == "args[10]"


def test_a_whole_tensor_check() -> None:
    check = guards.tensor_check(
        "check_tensor(L['x'], torch.nn.Parameter, DispatchKeySet(CPU, AutogradCPU), torch.bfloat16, device=0, "
        "requires_grad=False, size=[None, 5, 8], stride=[None, 8, 1])  # y = x  # b.py:3 in f"
    )
    assert check == guards.TensorCheck(
        source="L['x']",
        cls="Parameter",
        dtype="bfloat16",
        device="0",
        requires_grad=False,
        size=(None, 5, 8),
        stride=(None, 8, 1),
    )
    assert guards.tensor_check("x.size()[1] == 5") is None


def test_the_global_state_that_was_compiled_for() -> None:
    text = '___check_global_state() against {"grad_mode":true,"num_threads":1}'
    assert guards.global_state(text) == {"grad_mode": True, "num_threads": 1}
    assert guards.global_state("x == 1") == guards.global_state("___check_global_state() against {") == {}


@pytest.mark.parametrize(
    ("added", "place"),
    [
        ("_inductor/scheduler.py:3042 in can_fuse", "_inductor/scheduler.py:3042 in can_fuse"),
        ("torch/_inductor/ir.py:470 in is_aligned", "torch/_inductor/ir.py:470 in is_aligned"),
        ("_dynamo/variables/tensor.py:2606 in evaluate_expr", ""),
        ("my_inductor/x.py:1 in f", ""),
        (None, ""),
    ],
)
def test_guards_that_inductor_added(added: str | None, place: str) -> None:
    assert guards.inductor_place(added) == place


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("s._modules['d'].training", "s.d.training"),
        ("s._modules['blocks']._modules['3'].k", "s.blocks[3].k"),
        ("G['Cfg'].scale", "Cfg.scale"),
        ("G['__import_seqkit_dot_ops'].Settings.gate", "seqkit.ops.Settings.gate"),
        ("dict(type(s).__dict__)['k']", "type(s).k"),
    ],
)
def test_sources_are_shown_as_the_user_wrote_them(source: str, shown: str) -> None:
    assert guards.pretty(source) == shown


def test_sources_as_torch_writes_them() -> None:
    assert guards.full_source("self._modules['fc'].weight") == "L['self']._modules['fc'].weight"
    assert guards.full_source("G['flag']") == "G['flag']"
    assert guards.full_source("___check_x") == "___check_x"
    assert guards.full_source("___stack0") == "L['___stack0']"
    assert guards.full_source("dict(type(s).__dict__)['k']") == "dict(type(L['s']).__dict__)['k']"
    assert guards.local_names("L['x'].size()[0] == XL['y']") == "x.size()[0] == XL['y']"


def test_what_is_read_twice_is_one_object() -> None:
    assert guards.read("k == 1") is guards.read("k == 1")
    assert isinstance(guards.read("k == 1"), Condition)
