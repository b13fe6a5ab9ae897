"""Guards are taken apart as torch 2.13 prints them (each text below was printed by torch)."""

from __future__ import annotations

from typing import Any

import pytest

from cftdiag.diagnose.engine import guard_texts
from cftdiag.events import Guard

CASES = [
    ("s.step == 0", {"prop": "value", "source": "s.step", "root": "s", "path": ".step", "expected": 0}),
    ("L['self'].layer_idx == 3", {"prop": "value", "source": "self.layer_idx", "expected": 3}),
    ("k == 0.5", {"prop": "value", "source": "k", "root": "k", "path": "", "expected": 0.5}),
    ("s.win == (1, 2)", {"prop": "value", "expected": (1, 2)}),
    ("s.cache is None", {"prop": "none", "source": "s.cache", "expected": None}),
    ("x is y", {"prop": "alias", "source": "x"}),
    ("not hasattr(s, 'cc')", {"prop": "attribute", "source": "s.cc", "path": ".cc"}),
    (
        "len(mask_fn.__closure__[0].cell_contents) == 1",
        {"prop": "length", "source": "mask_fn.__closure__[0].cell_contents", "expected": 1},
    ),
    ("len(d) != 1", {"prop": "length", "source": "d", "root": "d"}),
    ("list(dict.keys(d))[0] == 'a'", {"prop": "keys", "source": "d"}),
    ("set.__contains__(s.names, 'a')", {"prop": "contains", "source": "s.names"}),
    ("G['Cfg'].scale == 2.0", {"prop": "value", "root": "G", "path": "['Cfg'].scale", "expected": 2.0}),
    ("dict(type(s).__dict__)['k'] == 1", {"prop": "value", "root": "s", "expected": 1}),
    (
        "___check_obj_id(f.__code__, 140501683082368), type=<class 'code'>",
        {"prop": "identity", "source": "f.__code__", "expected": "code"},
    ),
    (
        "___check_type_id(f, 94159157301152), type=<class 'm.A'>",
        {"prop": "type", "source": "f", "expected": "m.A"},
    ),
    (
        "tensor 'x' size mismatch at index 1. expected 5, actual 6",
        {"prop": "size", "source": "x", "dim": 1, "expected": 5, "actual": 6},
    ),
    (
        "tensor 'x' stride mismatch at index 0. expected 6, actual 1",
        {"prop": "stride", "dim": 0, "expected": 6, "actual": 1},
    ),
    (
        "tensor 'x' requires_grad mismatch. expected requires_grad=0",
        {"prop": "requires_grad", "expected": False, "actual": True},
    ),
    (
        "tensor 'x' dtype mismatch. expected Float, actual BFloat16",
        {"prop": "dtype", "expected": "Float", "actual": "BFloat16"},
    ),
    ("tensor 'x' rank mismatch. expected 2, actual 1", {"prop": "rank", "expected": 2, "actual": 1}),
    (
        "tensor 's._modules['p']._parameters['weight']' requires_grad mismatch. expected requires_grad=1. Guard failed on a parameter, see x.",
        {
            "prop": "requires_grad",
            "source": "s._modules['p']._parameters['weight']",
            "expected": True,
            "actual": False,
        },
    ),
    (
        "expected type of 'm' to be a tensor type, ' but found <class 'NoneType'>",
        {"prop": "tensor_type", "source": "m", "value_type": "NoneType"},
    ),
    ("GLOBAL_STATE changed: grad_mode ", {"prop": "state"}),
    ("___check_torch_function_mode_stack()", {"prop": "state"}),
    ("(x.size()[1] % 8) == 0", {"prop": "shape", "source": "x", "dim": 1}),
    ("2 <= x.size()[0] <= 9", {"prop": "shape", "source": "x", "dim": 0}),
    ("y.size()[0] == x.size()[0]", {"prop": "shape", "sizes": (("y", 0), ("x", 0))}),
    ("kwargs['mask'].size()[2] == 4", {"prop": "shape", "source": "kwargs['mask']", "dim": 2}),
]


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text[:50] for text, _ in CASES])
def test_guard_is_taken_apart(text: str, expected: dict[str, Any]) -> None:
    view = guard_texts.read(Guard(expression=text))
    assert {name: getattr(view, name) for name in expected} == expected
    # True == 1 in Python: the type matters for the cause.
    assert all(type(getattr(view, name)) is type(value) for name, value in expected.items())


def test_comment_is_kept_apart_from_the_expression() -> None:
    text = "0/3: s.step == 0            # s.step += 1  # cases/17.py:11 in forward (HINT: integer attributes)\nUser stack trace:\n  File"
    view = guard_texts.read(Guard(expression=text))
    frame = guard_texts.user_frame(view.comment)
    assert view.text == "s.step == 0"
    assert frame is not None
    assert (frame.file, frame.line, frame.function, frame.code) == (
        "cases/17.py",
        11,
        "forward",
        "s.step += 1",
    )


@pytest.mark.parametrize(
    "guard",
    [
        Guard(expression="2560*x.size()[0] < 5242880  # (_inductor/scheduler.py:3042 in can_fuse)"),
        Guard(expression="2560*x.size()[0] < 5242880", added="_inductor/scheduler.py:3042 in can_fuse"),
    ],
)
def test_place_that_added_a_shape_guard(guard: Guard) -> None:
    assert guard_texts.added_in(guard_texts.read(guard).comment) == "_inductor/scheduler.py:3042 in can_fuse"


def test_values_of_the_recorder_fill_what_the_text_leaves_open() -> None:
    view = guard_texts.read(
        Guard(
            expression="s.window == 4",
            source="L['s'].window",
            expected="4",
            actual="None",
            value_type="NoneType",
        )
    )
    assert view.actual is None
    assert view.knows("actual")
    assert not guard_texts.read(Guard(expression="s.window == 4")).knows("actual")


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("s._modules['d'].training", "s.d.training"),
        ("s._modules['blocks']._modules['3'].k", "s.blocks[3].k"),
        ("G['Cfg'].scale", "Cfg.scale"),
        ("dict(type(s).__dict__)['k']", "type(s).k"),
    ],
)
def test_sources_are_shown_as_the_user_wrote_them(source: str, shown: str) -> None:
    assert guard_texts.pretty(source) == shown
