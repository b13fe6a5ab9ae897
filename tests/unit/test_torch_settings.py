"""Settings of torch that only some releases have: a remedy with one is offered where it is there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import monitor_samples
import pytest
from test_diagnose_misses import BLOCKS, compiled, fixed_size, missed, specialized, tensor

from cftdiag.details import CacheDetail, plain
from cftdiag.diagnose import CAUSES, Context, Probes, diagnose
from cftdiag.diagnose.engine.probes import Numerics, Worst
from cftdiag.events import Event
from cftdiag.findings import Finding
from cftdiag.monitor import report as report_run
from cftdiag.monitor.cache_ranks import partial_hits
from cftdiag.torch_private.dynamo import settings_there
from cftdiag.torch_settings import SOME_RELEASES

STATIC, ONE_RANK, UNANIMOUS, STRICT = SOME_RELEASES


def changes(finding: Finding) -> list[dict[str, Any] | None]:
    return [None if r.change is None else dict(r.change) for r in finding.remedies]


def duck(*events: Event, settings: tuple[str, ...] = (STATIC,)) -> Finding:
    context = Context(blocks=BLOCKS, compile_kwargs={"dynamic": True}, settings=settings)
    found = diagnose(events, context)
    assert [f.cause for f in found] == ["duck_shape"]
    return found[0]


def test_what_is_there_is_found_by_looking() -> None:
    there = settings_there(
        ("torch._dynamo.config.recompile_limit", "torch._dynamo.config.nothing", "torch.no_such.config.x")
    )
    assert there == ("torch._dynamo.config.recompile_limit",)


def test_where_torch_compile_is_switched_off_a_check_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its blocks would run no graph, or raise from torch 2.14 on, and nobody would say why."""
    import torch

    from cftdiag.options import CheckOptions
    from cftdiag.passes.messages import Message, PassTask
    from cftdiag.passes.run_pass import run_task
    from cftdiag.subject import Origin

    task = PassTask(mode="auto", origin=Origin(type="live", name="m"), options=CheckOptions())
    said: list[Message] = []
    with torch._dynamo.config.patch(disable=True):
        run_task(task, said.append)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    run_task(task, said.append)
    assert [type(message).__name__ for message in said] == ["Refused", "Refused"]
    assert "switched off by TORCH_COMPILE_DISABLE=1" in said[0].message  # type: ignore[union-attr]
    assert "switched off by TORCHDYNAMO_DISABLE=1; unset it" in said[1].message  # type: ignore[union-attr]


def test_every_setting_of_some_releases_has_a_remedy() -> None:
    of_causes = {name for cause in CAUSES.values() for r in cause.remedies for name in r.change or ()}
    of_ranks = {name for r in _apart("a", "b").remedies for name in r.change or ()}
    assert set(SOME_RELEASES) <= of_causes | of_ranks


def test_the_dimension_that_kept_its_size_is_named() -> None:
    """As long as another input was wide, by torch's own word; by an equality; by the shapes alone; in a tuple."""
    event = fixed_size(arguments={"x": tensor(2, 9, 8), "y": tensor(2, 6)})
    by_symbol = duck(specialized("L['x'].size()[1]", "L['y'].size()[1]"), event)
    assert {STATIC: "L['y']:1"} in changes(by_symbol)
    equality = missed("x.size()[1] == x.size()[0]", arguments={"x": tensor(6, 9, 8)})
    assert {STATIC: "L['x']:0"} in changes(duck(compiled(x=tensor(6, 6, 8)), equality))
    alone = missed(
        "tensor 'x' size mismatch at index 1. expected 8, actual 12",
        arguments={"x": tensor(2, 12, 8), "z": tensor(8, 3)},
        detail={"parameters": {"hidden": "x"}},
    )
    found = duck(compiled(x=tensor(2, 8, 8), z=tensor(8, 3)), alone)
    assert {STATIC: "L['hidden']:2,L['z']:0"} in changes(found)
    event = fixed_size(arguments={"x": tensor(2, 9, 8)})
    made = specialized("L['x'].size()[1]", "L['pair'][0].size()[1]", "L['pair'][0].size()[2]")
    own = {"record": "create_symbol", "symbol": "s6", "val": "6", "source": "L['pair'][0].size()[2]"}
    again = compiled(event.compile_id or "", x=tensor(2, 9, 8))
    detail = dataclasses.replace(again.compiled, symbols=(_symbol(own),))
    found = duck(made, event, dataclasses.replace(again, detail=detail))
    assert {STATIC: "L['pair'][0]:2"} in changes(found)


def _symbol(record: dict[str, Any]) -> Any:
    from tests.unit.event_samples import detail

    return detail("compile", {"symbols": [record]}).symbols[0]


def test_nothing_is_named_where_both_sizes_changed_or_torch_has_no_such_list() -> None:
    equality = missed("x.size()[1] == x.size()[0]", arguments={"x": tensor(5, 9, 8)})
    made = compiled(x=tensor(6, 6, 8))
    assert not any(STATIC in (change or {}) for change in changes(duck(made, equality)))
    kept = missed("x.size()[1] == x.size()[0]", arguments={"x": tensor(6, 9, 8)})
    assert not any(STATIC in (change or {}) for change in changes(duck(made, kept, settings=())))


@pytest.mark.parametrize(
    ("backend", "settings", "offered"),
    [("inductor", (STRICT,), True), ("aot_eager", (STRICT,), False), ("inductor", (), False)],
)
def test_inductors_rounding_is_a_remedy_of_inductors_numbers(
    backend: str, settings: tuple[str, ...], offered: bool
) -> None:
    worst = Worst(name="layers.0.w", block="layers.0", eager=1.0, compiled=1.1, rel=0.1)
    wrong = Numerics(ok=False, backend=backend, failed=("layers.0.w",), worst=worst)
    (found,) = diagnose([], Context(blocks=BLOCKS, settings=settings, probes=Probes(numerics=wrong)))
    assert found.cause == "silent_wrong_numerics"
    assert ({STRICT: "strict"} in changes(found)) is offered


def _lookup(rank: int, outcome: str, inputs: str, **values: Any) -> Event:
    detail = CacheDetail(cache="fx_graph", outcome=outcome, parts={"gm": "g", "example_inputs": inputs})
    return monitor_samples.event("cache", rank=rank, compile_id="0/0", detail=plain(detail), **values)


def _apart(first: str, second: str, settings: tuple[str, ...] = SOME_RELEASES) -> Finding:
    found = partial_hits([_lookup(0, "hit", first), _lookup(1, "miss", second)], settings)
    assert found is not None
    return found


def test_ranks_that_a_cache_answers_differently() -> None:
    found = _apart("cuda:0", "cuda:1")
    assert (found.kind, found.cause, found.severity, found.count) == ("perf", "cache_miss", "info", 1)
    assert "rank 0 hit, rank 1 missed (another example_inputs)" in found.evidence[0]
    assert changes(found) == [{ONE_RANK: True}, {UNANIMOUS: True}]
    carried = _apart("cuda:0", "cuda:0")
    assert changes(carried) == [None, {UNANIMOUS: True}] and "cftdiag cache" in carried.remedies[0].summary
    assert changes(_apart("cuda:0", "cuda:1", settings=())) == []
    hits = [_lookup(rank, "hit", "cuda:0") for rank in range(2)]
    assert partial_hits(hits) is None
    # the same rank compiles it once and loads it in its next session
    assert partial_hits([_lookup(0, "miss", "a"), _lookup(0, "hit", "a")]) is None


def test_a_run_says_so_with_the_settings_of_its_own_torch(tmp_path: Path) -> None:
    by_rank = {}
    for rank, outcome in enumerate(("hit", "miss")):
        head = monitor_samples.head(rank, 2)
        facts = {**head.detail.session, "torch_settings": [ONE_RANK]}  # type: ignore[attr-defined, dict-item]
        head = dataclasses.replace(head, detail=dataclasses.replace(head.detail, session=facts))
        by_rank[rank] = [head, _lookup(rank, outcome, f"cuda:{rank}"), monitor_samples.end(1, rank)]
    report = report_run(monitor_samples.write_run(tmp_path / "run", by_rank))
    (found,) = report["findings"]
    assert [r["change"] for r in json.loads(json.dumps(found["remedies"]))] == [{ONE_RANK: True}]
