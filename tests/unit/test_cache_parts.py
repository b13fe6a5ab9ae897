"""Which part of a cache's key keeps a compile from the nearest entry."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import monitor_samples
from test_capture_recordings import read as events_of

from cftdiag import compare
from cftdiag.capture import cache_parts
from cftdiag.details import CacheDetail, plain, read
from cftdiag.monitor import report as report_run
from cftdiag.report import run_terminal

KEY = [
    "[aa11] gm: GraphModule()",
    "[bb22] example_inputs[0]: TensorMetadata(dtype=torch.float32, shape=[2, s0])",
    "[cc33] example_inputs[1]: 5",
    "[dd44] inductor_config[triton.max_tiles]: 2",
    "[ee55] torch_version: <bytes>: of [1]",
]


def test_parts_of_a_key() -> None:
    parts = cache_parts.read(KEY)
    assert list(parts) == [
        "gm",
        "example_inputs[0]",
        "example_inputs[1]",
        "inductor_config[triton.max_tiles]",
        "torch_version",
    ]
    assert parts["example_inputs[1]"] == "cc33"
    assert list(cache_parts.grouped(parts)) == ["gm", "example_inputs", "inductor_config", "torch_version"]
    moved = cache_parts.grouped(cache_parts.read([line.replace("cc33", "cc34") for line in KEY]))
    assert cache_parts.differing(cache_parts.grouped(parts), moved) == ("example_inputs",)
    assert cache_parts.read(None) == cache_parts.read([]) == cache_parts.read(["no part"]) == {}


def test_the_nearest_of_earlier_lookups() -> None:
    lookups = cache_parts.Lookups()
    first = cache_parts.read(KEY)
    assert lookups.add("fx_graph", "0/0", first) is None
    assert lookups.add("fx_graph", "0/1", first | {"gm": "x", "torch_version": "y"}) == (
        "0/0",
        ("gm", "torch_version"),
    )
    assert lookups.add("fx_graph", "0/2", first | {"gm": "x", "torch_version": "y", "new": "z"}) == (
        "0/1",
        ("new",),
    )
    assert lookups.add("aotautograd", "0/0", first) is None  # another cache
    assert lookups.add("fx_graph", "0/3", {}) is None
    assert cache_parts.shortened("abcdefgh") == (*"abcdef", "2 more")


def test_a_recorded_inductor_run_tells_its_parts() -> None:
    """Forward and backward of one compile: another graph, other inputs, the same settings."""
    found = [e.cached for e in events_of("inductor") if e.kind == "cache" and e.cached.cache == "fx_graph"]
    assert [c.outcome for c in found] == ["miss", "miss"] and found[0].nearest is None
    assert found[1].nearest == "0/0" and "gm" in (found[1].differs or ())
    assert not any("inductor_config" in part for part in found[1].differs or ())
    for detail in found:
        assert read("cache", json.loads(json.dumps(plain(detail)))) == detail
    assert "parts" not in plain(CacheDetail(cache="fx_graph", outcome="bypass"))


def _run(path: Path, config: str, outcome: str = "miss") -> dict[str, Any]:
    first, second = (
        monitor_samples.event(
            "cache",
            compile_id=f"0/{i}",
            detail=plain(
                CacheDetail(
                    cache="fx_graph",
                    outcome=outcome,
                    parts={"gm": f"g{i}", "inductor_config": config},
                    nearest="0/0" if i else None,
                    differs=("gm",) if i else None,
                )
            ),
        )
        for i in range(2)
    )
    events = [monitor_samples.head(), first, monitor_samples.compiled(), second, monitor_samples.end(1)]
    return report_run(monitor_samples.write_run(path, {0: events}))


def test_a_runs_report_and_what_changed_between_two(tmp_path: Path) -> None:
    a, same, b = (
        _run(tmp_path / name, config) for name, config in (("a", "c1"), ("same", "c1"), ("b", "c2"))
    )
    out = io.StringIO()
    run_terminal.show(a, file=out)
    assert "fx_graph: 2 miss" in out.getvalue()
    assert "0/1 missed fx_graph: differs from 0/0 in gm" in out.getvalue()
    assert compare.diff(a, same).changes == ()
    (change,) = compare.diff(a, b).changes
    assert (change.what, change.after, change.effect) == ("fx_graph cache key", "inductor_config", "other")
    hits = _run(tmp_path / "hits", "c1", "hit")
    (change,) = compare.diff(hits, a).changes
    assert (change.what, change.before, change.after, change.effect) == (
        "fx_graph cache misses",
        0,
        2,
        "worse",
    )
