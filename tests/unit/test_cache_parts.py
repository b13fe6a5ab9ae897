"""Which part of a cache's key keeps a compile from the nearest entry."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import monitor_samples
import pytest
from test_capture_recordings import read as events_of

from cftdiag import artifacts, cache_folder, cache_keys, compare
from cftdiag.capture import cache_parts
from cftdiag.cli.main import run
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


def test_a_later_process_knows_the_keys_of_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    parts = cache_parts.read(KEY)
    file = tmp_path / cache_folder.KEYS

    def process(name: str) -> cache_parts.Lookups:
        monkeypatch.setattr(cache_keys, "_process", lambda: name)
        monkeypatch.setattr(cache_keys, "_WRITTEN", set())
        return cache_parts.Lookups(cache_keys.Notes())

    first = process("1-1")
    assert first.add("fx_graph", "0/0", parts, "key0") is None
    # the trainer's recorder beside the monitor's: the same key once, and no answer to itself
    assert cache_parts.Lookups(cache_keys.Notes()).add("fx_graph", "0/0", parts, "key0") is None
    assert len(file.read_text().splitlines()) == 1
    file.write_bytes(
        file.read_bytes() + b'{"cache": "fx_graph", "ke\n[1]\n'
    )  # a line that a killed process left
    near = process("2-1").add("fx_graph", "0/0", parts | {"torch_version": "other"}, "key1")
    assert near is not None and near[1] == ("torch_version",)
    assert re.fullmatch(r"0/0 of \d{4}-\d\d-\d\d \d\d:\d\d", near[0])
    assert cache_keys.missed_key({"nearest": near[0], "differs": near[1]}).endswith("in torch_version")
    assert "whose entry is gone" in cache_keys.missed_key({"nearest": near[0], "differs": []})


def test_notes_that_cannot_be_kept_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_keys, "_WRITTEN", set())
    nowhere = cache_keys.Notes(tmp_path / "none")
    nowhere.add("fx_graph", "key", "0/0", {"gm": "a"})
    assert nowhere.known("fx_graph") == [] and not (tmp_path / "none").exists()
    (tmp_path / cache_folder.KEYS).mkdir()
    cache_keys.Notes(tmp_path).add("fx_graph", "key", "0/0", {"gm": "a"})
    assert cache_keys.Notes(tmp_path).known("fx_graph") == []


def test_what_others_write_into_the_notes_is_not_shown(tmp_path: Path) -> None:
    row = {
        "cache": "fx_graph", "key": "k", "compile_id": "0/0", "time": 1.0, "process": "9-9", "made_by": {},
        "parts": {"gm": "a", "\x1b[31mred": "b"},
    }  # fmt: skip
    file = tmp_path / cache_folder.KEYS
    file.write_text(json.dumps(row) + "\n" + json.dumps(row | {"compile_id": "\x1b[2J"}) + "\n")
    assert [parts for _, parts in cache_keys.Notes(tmp_path).known("fx_graph")] == [{"gm": "a"}]


def test_the_verb_says_by_which_versions_a_directory_was_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = cache_keys.Notes(tmp_path)
    monkeypatch.setattr(cache_keys, "_WRITTEN", set())
    here = artifacts.fingerprint(None)
    notes.add("fx_graph", "a", "0/0", {"gm": "a"})
    monkeypatch.setattr(artifacts, "fingerprint", lambda devices: here | {"torch": "2.9.0"})
    notes.add("fx_graph", "b", "0/0", {"gm": "b"})
    monkeypatch.setattr(artifacts, "fingerprint", lambda devices: here)
    assert run(["cache", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 key made by" in shown and "they can hit" in shown
    assert f"none of them hits here: torch 2.9.0 there, {here['torch']} here" in shown
    assert run(["cache", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert [(m["keys"], m["hits"]) for m in row["made_by"]] == [(1, False), (1, True)] and row["kinds"] == []
