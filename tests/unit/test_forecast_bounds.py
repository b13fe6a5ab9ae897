"""Guards become conditions over batch size and length; the written bounds mean exactly what the guards mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cftdiag.forecast.bounds import Condition, holds, read
from cftdiag.forecast.formulas import Formula, Untranslatable, fit, mentions, translate

X = {
    "L['x'].size()[0]": "B",
    "L['x'].size()[1]": "S",
    "L['x'].stride()[0]": "64*S",
    "L['kwargs']['m'].size()[2]": "S + 1",
    "L['n']": "B*S",
}


class Tensor:
    def __init__(self, size: tuple[int, ...], stride: tuple[int, ...] = ()) -> None:
        self._size, self._stride = size, stride

    def size(self) -> tuple[int, ...]:
        return self._size

    def stride(self) -> tuple[int, ...]:
        return self._stride


def scope(b: int, s: int) -> dict[str, object]:
    """What the sources of X are at a shape: the guard itself can be evaluated on it, as torch does."""
    mask = Tensor((b, 1, s + 1))
    found = {"x": Tensor((b, s, 64), (64 * s, 64, 1)), "kwargs": {"m": mask}, "n": b * s}
    return {"L": found, "Eq": lambda a, c: a == c, "Ne": lambda a, c: a != c, "Mod": lambda a, c: a % c}


def condition(*guards: str) -> Condition:
    return Condition(tuple(atom for guard in guards for atom in translate(guard, X)))


@pytest.mark.parametrize(
    ("guards", "bounds"),
    [
        (["2 <= L['x'].size()[1] <= 1024"], ["2 <= S <= 1024"]),
        (["2 <= L['x'].size()[1]", "L['x'].size()[1] < 1025"], ["2 <= S <= 1024"]),
        (["(L['x'].size()[1] % 8) == 0"], ["S % 8 == 0"]),
        (
            ["4096*L['x'].size()[0]*L['x'].size()[1] < 5242880", "2 <= L['x'].size()[0]"],
            ["B >= 2", "B*S < 1280"],
        ),
        (["L['x'].stride()[0] == 64*L['x'].size()[1]"], []),
        (
            [
                "L['kwargs']['m'].size()[2] == L['x'].size()[1] + 1",
                "L['n'] == L['x'].size()[1]*L['x'].size()[0]",
            ],
            [],
        ),
        (["Ne(L['x'].size()[1], 128)"], ["S != 128"]),
        (["L['x'].size()[1] <= 9223372036854775806"], []),
        (["((L['x'].size()[1] + 7) // 8)*8 <= 9223372036854775807"], []),
        (["L['n'] != 0", "L['x'].size()[1] >= 1"], []),
        (["L['x'].size()[1] == 12", "L['n'] < 30"], ["B <= 2", "S == 12"]),
        (["L['x'].size()[1] == 12", "L['x'].size()[1] >= 13"], ["False"]),
        (["3*L['x'].size()[1] == 10"], ["False"]),
        (["L['x'].size()[1] <= 512", "L['x'].size()[0] <= 4", "L['n'] <= 2048"], ["B <= 4", "S <= 512"]),
        (["not (L['x'].size()[1] % 8 == 0)"], ["S % 8 != 0"]),
        (["L['n'] >= 1280", "L['n'] >= 8"], ["B*S >= 1280"]),
        (["L['n'] < 1280", "2*L['n'] < 3000", "L['n'] > 7", "L['n'] >= 8"], ["B*S < 1280", "B*S > 7"]),
        (["L['n'] >= 1280", "L['n'] < 1280"], ["False"]),
        (["L['n'] == 24", "L['n'] <= 100"], ["B*S == 24"]),
    ],
)
def test_written_bounds(guards: list[str], bounds: list[str]) -> None:
    assert list(condition(*guards).bounds()) == bounds


def test_tensor_guard_gives_static_sizes_and_strides() -> None:
    text = (
        "check_tensor(L['x'], Tensor, DispatchKeySet(CPU, BackendSelect, ADInplaceOrView, AutogradCPU), torch.float32, device=None, "
        "requires_grad=True, size=[2, None, 64], stride=[32768, 64, 1])"
    )
    assert translate(text, X) == ["Eq(B, 2)", "Eq(64*S, 32768)"]
    assert condition(text).bounds() == ("B == 2", "S == 512")
    assert translate(text.replace("L['x']", "L['self'].weight"), X) == []


def test_guards_that_do_not_follow_the_shape_say_nothing() -> None:
    for guard in (
        "L['self'].training == True",
        "___check_type_id(L['n'], 94), type=<class 'int'>",
        "hasattr(L['x'], '_dynamo_dynamic_indices') == False",
    ):
        assert translate(guard, X) == []


def test_what_cannot_be_expressed_is_refused_not_guessed() -> None:
    for guard in (
        "IsNonOverlappingAndDense(L['x'].size()[1])",
        "L['x'].size()[1] in (3, 4)",
        "L['x'].size()[1] < L['self'].limit",
    ):
        with pytest.raises(Untranslatable):
            translate(guard, X)
    assert translate("L['x'].size()[1] < L['self'].limit", X, {"L['self'].limit": 7}.get) == ["((S) < (7))"]
    assert mentions("foo(L['n'])", X) and not mentions("foo(L['m'])", X)


def test_read_accepts_conditions_only() -> None:
    assert holds(["2 <= S <= 9", "B*S % 2 == 0"], 1, 4) and not holds(["2 <= S <= 9", "B*S % 2 == 0"], 1, 5)
    assert not holds(["False"], 1, 1) and holds([], 1, 1)
    for wrong in ("__import__('os')", "S.real < 3", "S <", "True", "lambda: S"):
        with pytest.raises(ValueError, match="bound"):
            read([wrong])


_TERMS = st.sampled_from(list(X))
_NUMBERS = st.integers(0, 300)


@st.composite
def expressions(draw: st.DrawFn) -> str:
    a, b, n = draw(_TERMS), draw(_TERMS), draw(st.integers(1, 64))
    forms = [
        "{a}",
        "{n}*{a}",
        "{a}*{b}",
        "{a} + {b}",
        "{a} - {b}",
        "{n} + {a}",
        "{a} // {n}",
        "{a} % {n}",
        "({a} + {n}) // {n} * {n}",
    ]
    forms += ["max({a}, {n})", "min({n}, {b})", "-({a})", "({a} * {b}) % {n}", "{a} - {n}", "{a}**2"]
    return draw(st.sampled_from(forms)).format(a=a, b=b, n=n)


@st.composite
def guards(draw: st.DrawFn) -> str:
    left, right, n, m = draw(expressions()), draw(expressions()), draw(_NUMBERS), draw(_NUMBERS)
    op, op2 = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="])), draw(st.sampled_from(["<", "<="]))
    forms = [
        "({l}) {op} {n}",
        "{n} {op} ({l})",
        "({l}) {op} ({r})",
        "{n} {op2} ({l}) {op2} {m}",
        "not (({l}) {op} {n})",
    ]
    forms += [
        "Eq({l}, {n})",
        "Ne(Mod({l}, {k}), 0)",
        "({l}) {op} {n} or ({r}) {op2} {m}",
        "({l}) {op} {n} and ({r}) {op2} {m}",
    ]
    return draw(st.sampled_from(forms)).format(l=left, r=right, n=n, m=m, op=op, op2=op2, k=n + 1)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(guards(), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 700)), min_size=1, max_size=8),
)
def test_map_and_guards_agree_on_every_shape(texts: list[str], shapes: list[tuple[int, int]]) -> None:
    found = condition(*texts)
    bounds = found.bounds()
    b, s = np.array([x for x, _ in shapes]), np.array([x for _, x in shapes])
    at_once = found.holds(b, s)
    for i, (batch, length) in enumerate(shapes):
        expected = all(eval(text, scope(batch, length)) for text in texts)
        assert found.holds(batch, length) == expected
        assert at_once[i] == expected
        assert holds(bounds, batch, length) == expected, bounds


@pytest.mark.parametrize(
    "text",
    [
        "7",
        "S",
        "B",
        "B*S",
        "64*S",
        "S*S",
        "3*B*S*S",
        "S + 1",
        "5*S + 3",
        "S // 4",
        "-(-S // 8)*8",
        "3*-(-S // 8)",
        "5*(S // 16)",
        "min(S, 100)",
        "max(S, 50)",
        "B*S + 7",
    ],
)
def test_fit_finds_the_formula_and_predicts_elsewhere(text: str) -> None:
    seen = [(2, 33), (2, 50), (3, 50), (2, 131), (4, 77)]
    found = fit([(b, s, Formula(text).at(b, s)) for b, s in seen])
    assert found is not None
    for b, s in [(1, 20), (7, 1000), (5, 64)]:
        assert found.at(b, s) == Formula(text).at(b, s), found


def test_fit_claims_nothing_that_no_sample_confirms() -> None:
    assert fit([(2, 33, 7), (2, 50, 19)]) is None
    assert fit([(2, 33, 7), (2, 33, 8)]) is None
    assert fit([]) is None
    assert fit([(2, 33, 33)]) == Formula("33")
    assert Formula("33").constant == 33 and Formula("S").constant is None
