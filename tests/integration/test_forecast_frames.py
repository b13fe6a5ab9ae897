"""Locals made for a shape have the geometry that the real ones would have, and guards cannot tell them apart."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from cftdiag.capture.cache_entries import Call, Calls, entries
from cftdiag.forecast.frame_locals import Described, Frame, Unexplained, describe, global_state, restored
from cftdiag.forecast.model_state import unchanged

SEEN = [(2, 33), (2, 50), (3, 50), (2, 131), (4, 77)]


def function(x: torch.Tensor) -> torch.Tensor:
    return x


def described(f_locals: Mapping[str, Any]) -> Described:
    return describe(Call(function.__code__, dict(f_locals)))


def frame(make: Any) -> Frame:
    return Frame([(b, s, described(make(b, s))) for b, s in SEEN])


def arguments(b: int, s: int) -> dict[str, Any]:
    hidden = torch.zeros(b, s, 8, requires_grad=True) * 1
    table = torch.zeros(s, 4)
    mask = torch.ones(1, 1, s, s, dtype=torch.bool).expand(b, 1, s, s)
    return {
        "self": torch.nn,
        "args": (hidden, [hidden, s + 1]),
        "kwargs": {"mask": mask, "rope": (table, table.unsqueeze(0)), "none": None, "flag": True},
        "turned": torch.zeros(b, 8, s, dtype=torch.bfloat16).transpose(1, 2),
        "cut": torch.zeros(b, s + 3, 8)[:, 3:],
        "window": min(s, 100),
    }


def geometry(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        base = geometry(value._base) if value._is_view() else None
        return (
            list(value.shape),
            list(value.stride()),
            value.storage_offset(),
            value.dtype,
            value.requires_grad,
            base,
        )
    if isinstance(value, dict):
        return {key: geometry(item) for key, item in value.items()}
    return type(value)(geometry(item) for item in value) if isinstance(value, (tuple, list)) else value


def test_locals_for_a_shape_never_seen() -> None:
    made = frame(arguments)
    for b, s in [(2, 64), (7, 1000), (5, 17), (2, 33)]:
        assert geometry(made.at(b, s)) == geometry(arguments(b, s))
    found = made.at(7, 1000)
    assert found["args"][0] is found["args"][1][0], "the same tensor in two places stays the same tensor"
    assert made.sources["L['kwargs']['mask'].size()[3]"] == "S"
    assert made.sources["L['args'][1][1]"] == "S + 1"
    assert "B" in made.sizes and "8" in made.sizes


def test_huge_shapes_take_address_space_alone() -> None:
    import resource

    made = frame(lambda b, s: {"mask": torch.zeros(b, 1, s, s)})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert made.at(4, 131072)["mask"].shape == (4, 1, 131072, 131072)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda b, s: {"x": torch.zeros(b, s * s % 7 + 1)},
            r"L\['x'\]\.\w+\(\)\[\d\] follows no known formula",
        ),
        (lambda b, s: {"x": object()}, r"L\['x'\] is another object in each call"),
    ],
)
def test_what_does_not_follow_the_shape_is_named(make: Any, words: str) -> None:
    with pytest.raises(Unexplained, match=words):
        frame(make)


def test_signatures_tell_kinds_apart() -> None:
    plain = described({"x": torch.zeros(2, 3), "m": None})
    assert plain.signature == described({"x": torch.zeros(5, 9), "m": None}).signature
    for other in (
        {"x": torch.zeros(2, 3), "m": torch.zeros(2)},
        {"x": torch.zeros(2, 3, 1), "m": None},
        {"x": torch.zeros(2, 3, dtype=torch.float64), "m": None},
        {"x": torch.zeros(2, 3, requires_grad=True), "m": None},
        {"x": torch.zeros(3, 2).t(), "m": None},
    ):
        assert described(other).signature != plain.signature
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert described({"x": torch.zeros(2, 3), "m": None}).signature != plain.signature


def test_marked_tensors_stay_marked() -> None:
    def make(b: int, s: int) -> dict[str, Any]:
        x = torch.zeros(b, s)
        torch._dynamo.mark_dynamic(x, 1)
        return {"x": x}

    assert frame(make).at(3, 9)["x"]._dynamo_dynamic_indices == {1}


def test_global_state_is_restored_around_a_probe() -> None:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        state = global_state()
    outside = global_state()
    with restored(state):
        assert global_state() == state != outside
    assert global_state() == outside


@pytest.mark.usefixtures("fresh_dynamo")
def test_cached_guards_take_made_locals_for_real_ones() -> None:
    def region(x: torch.Tensor, mask: torch.Tensor, n: int) -> torch.Tensor:
        y = x.sin() * n + mask.sum()
        return y.relu() if x.shape[1] % 8 == 0 else y

    def real(b: int, s: int) -> dict[str, Any]:
        return {"x": torch.zeros(b, s, 8), "mask": torch.ones(1, 1, s, s).expand(b, 1, s, s), "n": s}

    compiled = torch.compile(region, backend="eager", dynamic=True)
    codes: dict[Any, Any] = {}
    seen: list[Call] = []
    with Calls(seen.append, codes):
        compiled(**real(2, 33))
        compiled(**real(2, 40))
        compiled(**real(3, 48))
    assert [call.code for call in seen] == [region.__code__] * 3, "a hit is seen as well as a compile"
    assert sys.getprofile() is None
    cached = entries(region.__code__)
    assert [e.compile_id for e in cached] == ["0/0", "0/1"]
    made = Frame([(b, s, describe(Call(region.__code__, real(b, s)))) for b, s in SEEN])
    for b, s in [(2, 64), (5, 19), (1, 16), (9, 1)]:
        assert [e.matches(made.at(b, s)) for e in cached] == [e.matches(real(b, s)) for e in cached], (b, s)
    assert [e.matches(made.at(5, 64)) for e in cached] == [False, True]
    failure = cached[0].failure(made.at(5, 64))
    assert failure is not None and "% 8" in failure.expression
    assert any("% 8" in text for text in cached[1].texts())
    assert cached[0].value("L['n']", made.at(5, 64)) == 64


def test_a_model_is_put_back() -> None:
    class Stateful(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(3))
            self.count, self.seen, self.cache = 0, [1], {"a": 1}

        def forward(self) -> None:
            self.count += 1
            self.seen.append(2)
            self.cache["b"] = 2
            self.new = torch.zeros(1)
            self.table.add_(1)
            self.register_buffer("late", torch.zeros(2))

    model = Stateful()
    table, noise = model.table, torch.get_rng_state()
    with unchanged(model):
        model()
        model.table = torch.ones(9)
        torch.rand(3)
    assert (model.count, model.seen, model.cache) == (0, [1], {"a": 1})
    assert model.table is table and table.tolist() == [0, 0, 0]
    assert not hasattr(model, "new") and not hasattr(model, "late")
    assert torch.equal(torch.get_rng_state(), noise)
