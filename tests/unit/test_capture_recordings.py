"""Recorded traces of real programs through the parser: no torch is imported, nothing is compiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cftdiag.capture.trace import parse_records, read_records, read_trace_dir, records
from cftdiag.events import Event

RECORDINGS = Path(__file__).resolve().parent.parent / "recordings" / "2.13.0"


def read(name: str) -> list[Event]:
    return read_trace_dir(RECORDINGS / f"{name}.log")


def told(events: list[Event]) -> list[tuple[str, str | None]]:
    return [(event.kind, event.compile_id) for event in events if event.kind != "cache"]


def only(events: list[Event], kind: str) -> Event:
    [event] = [event for event in events if event.kind == kind]
    return event


def test_reading_a_trace_does_not_import_torch() -> None:
    code = f"import sys; from cftdiag.capture.trace import read_trace_dir; read_trace_dir({str(RECORDINGS)!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1500)


def test_a_break_that_bubbles_up_is_told_once_per_compile_of_its_frame() -> None:
    events = read("break")
    breaks = [event for event in events if event.kind == "graph_break"]
    # The helper's own frame (1/0) breaks at the same line; so does the first attempt of every restarted
    # compile.
    assert [event.compile_id for event in breaks] == ["0/0", "0/1"]
    detail = breaks[0].broke
    assert (detail.gb_id, detail.gb_type) == ("GB0025", "Call to `torch._dynamo.graph_break()`")
    assert detail.fullgraph is False
    assert detail.hints == ("Remove the `torch._dynamo.graph_break()` call.",)
    assert detail.explanation == "User-inserted graph break. Message: None"
    assert detail.context == "Called `torch._dynamo.graph_break()` with args `[]`, kwargs `{}`"
    last = breaks[0].stack[-1]
    assert (last.file, last.line, last.function, last.code) == (
        "/tmp/src/programs.py",
        21,
        "helper",
        "torch._dynamo.graph_break()",
    )
    assert [frame.function for frame in breaks[0].stack[-2:]] == ["forward", "helper"]


def test_resume_functions_are_regions_of_their_own() -> None:
    regions = {event.compile_id: event.region for event in read("break") if event.kind == "compile"}
    assert regions["0/0"] == "forward"
    assert regions["2/0"] == "torch_dynamo_resume_in_helper_at_21"


def test_a_fullgraph_failure_is_a_break_although_torch_traces_none() -> None:
    assert "dynamo_graph_break_reason" not in (RECORDINGS / "fullgraph.log").read_text()
    events = read("fullgraph")
    assert told(events) == [("graph_break", "0/0"), ("compile", "0/0")]
    event = only(events, "graph_break")
    assert event.broke.fullgraph is True
    assert event.broke.gb_id == "GB0025"
    assert event.stack[-1].line == 21
    compiled = only(events, "compile")
    assert (compiled.compiled.status, compiled.compiled.fail_type, compiled.compiled.graphs) == (
        "failed",
        "Unsupported",
        0,
    )


def test_a_data_dependent_branch_keeps_its_id_and_line() -> None:
    event = only(read("branch"), "graph_break")
    assert event.broke.gb_id == "GB0170"
    assert event.broke.gb_type == "Data-dependent branching"
    assert event.stack[-1].line == 30


def test_the_closest_entry_of_a_recorded_recompile_is_the_one_that_failed_last() -> None:
    recompiles = [event for event in read("lengths") if event.kind == "recompile"]
    assert [event.compile_id for event in recompiles] == ["0/1", "0/2", "0/3"]
    # torch names the most recent entry first: `requires_grad`, which is not why the length recompiled.
    first = recompiles[1].reasons[0]
    assert first.guard.expression == "tensor 'x' requires_grad mismatch. expected requires_grad=1"
    assert not first.closest
    guard = recompiles[1].guard
    assert guard is not None
    assert (guard.source, guard.expected, guard.actual) == ("L['x'].size()[1]", "5", "6")
    assert recompiles[2].guard is not None
    assert recompiles[2].guard.source == "L['x'].size()[1]"


def test_attribute_guards_keep_source_line_and_user_frame() -> None:
    event = [event for event in read("index") if event.kind == "recompile"][-1]
    assert [reason.entry for reason in event.reasons] == ["0/1", "0/0"]
    assert event.guard is not None
    assert (event.guard.expression, event.guard.source, event.guard.expected) == (
        "self.layer_idx == 1",
        "L['self'].layer_idx",
        "1",
    )
    # torch cuts the path short in the middle of a name.
    assert event.guard.added == "/tmp/src/programs.py:29 in forward"
    assert event.stack[-1].file == "/tmp/src/programs.py"
    assert event.stack[-1].code == "x = x * self.layer_idx"


@pytest.mark.parametrize(("name", "raised", "limit"), [("limit", False, 2), ("limit_fullgraph", True, None)])
def test_a_limit_hit_is_neither_a_break_nor_a_recompile(name: str, raised: bool, limit: int | None) -> None:
    events = read(name)
    assert told(events) == [
        ("compile", "0/0"),
        ("recompile", "0/1"),
        ("compile", "0/1"),
        ("limit_hit", "0/2"),
    ]
    event = events[-1]
    assert (event.limited.limit, event.limited.limit_kind, event.detail.raised) == (
        limit,
        "recompile_limit",
        raised,
    )
    assert [reason.entry for reason in event.reasons] == ["0/1", "0/0"]
    assert event.guard is not None
    assert (event.guard.expected, event.guard.actual) == ("6", "7")
    assert event.code is not None
    assert event.code.qualname == "forward"


def test_a_backend_that_raises_is_an_error_not_a_break() -> None:
    events = read("backend_error")
    assert told(events) == [("error", "0/0"), ("compile", "0/0")]
    detail = only(events, "error").failed
    assert (detail.type, detail.phase) == ("BackendCompilerFailed", "backend")
    assert "this backend is broken" in detail.message


def test_cache_outcomes_and_seconds_by_phase() -> None:
    events = read("inductor")
    caches = [(event.cached.cache, event.cached.outcome) for event in events if event.kind == "cache"]
    assert caches == [("aotautograd", "miss"), ("fx_graph", "miss"), ("fx_graph", "miss")]
    forward, backward = (event for event in events if event.kind == "compile")
    assert forward.region == "forward"
    assert backward.region == "backward"
    seconds = forward.seconds
    assert seconds["inductor"] > seconds["aot"] > 0
    assert sum(seconds[k] for k in ("dynamo", "aot", "inductor")) == pytest.approx(seconds["total"])
    assert backward.seconds["backward"] > 0


def test_dynamic_sizes_are_told_as_symbols() -> None:
    last = [event for event in read("lengths") if event.kind == "compile" and event.region == "forward"][-1]
    [symbol] = last.compiled.symbols
    assert (symbol.source, symbol.val) == ("L['x'].size()[1]", "6")
    assert last.compiled.unbacked is False


def test_events_survive_json() -> None:
    for name in ("break", "limit", "lengths", "inductor"):
        for event in read(name):
            import json

            assert Event.from_dict(json.loads(event.to_line())).to_line() == event.to_line()


def test_a_torn_or_foreign_line_costs_only_its_record() -> None:
    lines = (RECORDINGS / "limit.log").read_text().splitlines()
    whole = parse_records(records(lines, 2026))
    start = next(i for i, line in enumerate(lines) if '"name": "recompile_reasons"' in line)
    torn = [
        "W1130 a line of another writer",
        *lines[:start],
        lines[start][:60],
        *lines[start + 1 :],
        lines[-1][:40],
    ]
    events = parse_records(records(torn, 2026))
    assert [e.kind for e in whole] == ["compile", "recompile", "compile", "limit_hit"]
    assert [e.kind for e in events] == ["compile", "compile", "limit_hit"]


def test_a_killed_process_still_tells_the_miss_it_died_in() -> None:
    lines = (RECORDINGS / "limit.log").read_text().splitlines()
    end = next(i for i, line in enumerate(lines) if '"name": "recompile_reasons"' in line)
    events = parse_records(
        records([*lines[: end + 1], "\t0/0: tensor 'x' size mismatch at index 1. expected 5, actual 6"], 2026)
    )
    assert [event.kind for event in events] == ["compile", "recompile"]


def test_all_files_of_a_directory_in_order_with_their_ranks(tmp_path: Path) -> None:
    text = (RECORDINGS / "limit.log").read_text()
    (tmp_path / "dedicated_log_torch_trace_rank_0_a.log").write_text(text)
    (tmp_path / "dedicated_log_torch_trace_rank_3_b.log").write_text(text)
    events = read_trace_dir(tmp_path)
    assert {event.rank for event in events} == {0, 3}
    assert len(events) == 8
    assert [event.time for event in events] == sorted(event.time for event in events)


def test_bad_input_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no \.log file"):
        read_trace_dir(tmp_path)
    (tmp_path / "x.log").write_text("hello\n")
    with pytest.raises(ValueError, match="no structured-trace record"):
        read_records(tmp_path / "x.log")
