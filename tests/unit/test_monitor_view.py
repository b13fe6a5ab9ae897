"""The live view: who waits for whom, what is shown."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import monitor_samples as samples
import pytest

from cftdiag.cli.main import run
from cftdiag.monitor import launch, report
from cftdiag.monitor.as_check import as_check
from cftdiag.monitor.follow import Tail
from cftdiag.monitor.narrate import Narrator
from cftdiag.monitor.run_state import View
from cftdiag.plan import FINGERPRINT, Plan, Regime
from cftdiag.report import markdown, watch_screen


def state(path: Path, rank: int, **facts: Any) -> None:
    (path / "ranks").mkdir(exist_ok=True)
    values = {
        "id": f"s{rank}",
        "rank": rank,
        "time": 1000.0,
        "step": 4,
        "compiling": None,
        "group_timeout": None,
        "ended": False,
        **facts,
    }
    (path / "ranks" / f"rank{rank:05d}.json").write_text(json.dumps(values))


def running(tmp_path: Path) -> Path:
    by_rank = {
        rank: [
            samples.head(rank, 3),
            samples.compiled(rank=rank),
            samples.steps(1, [4.0, 0.5, 0.5, 0.5], rank),
        ]
        for rank in (0, 1, 2)
    }
    by_rank[1].append(
        samples.event(
            "recompile", step=5, rank=1, time=1005.0, detail={"cause": "seq_len", "batch": [2, 640]}
        )
    )
    path = samples.write_run(tmp_path / "run", by_rank)
    state(path, 0, group_timeout=600.0, time=1004.0)
    state(path, 1, time=1005.0, compiling={"id": "0/1", "since": 1005.0})
    state(path, 2, group_timeout=600.0, time=1004.5)
    return path


def test_who_waits_for_whom(tmp_path: Path) -> None:
    view = View(running(tmp_path))
    view.refresh()
    assert view.waiting(now=1005.5) is None
    waiting = view.waiting(now=1035.0)
    assert waiting is not None
    assert waiting.sentence(1035.0) == "ranks 0, 2 wait for rank 1, 30 s; the process group gives up in 570 s"


def test_nobody_waits_when_all_compile_or_have_ended(tmp_path: Path) -> None:
    path = running(tmp_path)
    for rank in (0, 2):
        state(path, rank, compiling={"id": "0/1", "since": 1005.0})
    view = View(path)
    view.refresh()
    assert view.waiting(now=1035.0) is None
    for rank in (0, 1, 2):
        state(path, rank, ended=True)
    view.refresh()
    assert view.waiting(now=1035.0) is None
    assert view.finished


def test_the_screen(tmp_path: Path) -> None:
    path = running(tmp_path)
    view = View(path)
    view.refresh()
    out = io.StringIO()
    watch_screen.show(view, file=out, width=120, now=1035.0)
    lines = out.getvalue().splitlines()
    assert lines[0] == f"{path}  step 4, 2.00 steps/s, 3 ranks, nothing heard for 30 s"
    assert "     1  h        4     2.00           1        2.0  compiling 0/1 30 s" in lines
    assert "  ranks 0, 2 wait for rank 1, 30 s; the process group gives up in 570 s" in lines
    assert any(
        line.startswith(
            "  step 5, rank 1  recompile  layers.0  batch 2 x 640  seq_len; guard tensor 'x' size"
        )
        for line in lines
    )
    assert "  1 x Block  layers.0  3 compiles, 1 recompile" in lines


def test_what_comes_next_by_the_plan(tmp_path: Path) -> None:
    short, long, longer = (
        Regime(id=name, bounds=(bounds,), representative=(2, length, ""))
        for name, bounds, length in (("R1", "S <= 64", 64), ("R2", "S <= 640", 640), ("R3", "S >= 641", 900))
    )
    plan = Plan(
        fingerprint=dict.fromkeys(FINGERPRINT),
        regimes=(short, long, longer),
        forecast=(
            {"step": 9, "regime": "R3", "cause": "seq_len"},
            {"step": 6, "regime": "R2", "cause": "seq_len"},
            {"step": 3, "regime": "R1", "cause": "first"},
        ),
    )
    plan.write(tmp_path / "plan.json")
    head = samples.head(0, 1, plan=str(tmp_path / "plan.json"))
    compiled = samples.event("compile", step=1, detail={"batch": [2, 32]}, seconds={"total": 3.0})
    path = samples.write_run(tmp_path / "run", {0: [head, compiled, samples.steps(1, [4.0, 0.5, 0.5, 0.5])]})
    view = View(path)
    view.refresh()
    ahead = view.ahead()
    assert ahead is not None
    assert ahead.sentence() == "next by the plan: step 6, seq_len in regime R2; 1 more after it"
    assert (ahead.uncompiled, ahead.regimes) == (("R2", "R3"), 3)
    assert dataclasses.replace(ahead, compiles=()).sentence().endswith("comes to them: R2, R3")
    assert "all 3 regimes have been" in dataclasses.replace(ahead, compiles=(), uncompiled=()).sentence()
    shown = "\n".join(line.plain for line in watch_screen.lines(view, 1010.0))
    assert ahead.sentence() in shown and "compiling took 3 s of " in shown
    (tmp_path / "plan.json").unlink()
    gone = View(path)
    gone.refresh()
    assert gone.ahead() is None and gone.lost() is not None


def test_a_tail_reads_each_line_once_and_waits_for_its_end(tmp_path: Path) -> None:
    path = samples.write_run(tmp_path / "run", {0: [samples.head()]})
    tail = Tail(path)
    assert len(tail.read().heads) == 1
    file = path / "events" / "rank00000.jsonl"
    line = samples.compiled().to_line()
    with open(file, "a") as stream:
        stream.write(line[:50])
    assert tail.read().events == []
    with open(file, "a") as stream:
        stream.write(line[50:] + "\n")
    assert len(tail.read().events) == 1
    assert tail.read().events == []
    file.unlink()
    assert tail.read().events == []


def test_equal_events_of_several_ranks_are_one_line(tmp_path: Path, capsys: Any) -> None:
    by_rank = {
        rank: [
            samples.head(rank, 2, warmup_steps=3),
            samples.event("recompile", step=5, rank=rank, detail={"cause": "seq_len"}),
        ]
        for rank in (0, 1)
    }
    narrator = Narrator(samples.write_run(tmp_path / "run", by_rank))
    narrator.poll()
    narrator.end(0)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert told[0].startswith("cftdiag: step 5, ranks 0-1, recompile of layers.0: seq_len; guard")
    assert told[0].endswith("[after warm-up]")
    assert told[1] == f"cftdiag: ranks 0-1: 2 recompiles; cftdiag report {tmp_path / 'run'}"


def test_what_the_caches_answered_to_a_compile_is_one_line(tmp_path: Path, capsys: Any) -> None:
    def lookup(rank: int, cache: str, outcome: str, **more: Any) -> Any:
        detail = {"cache": cache, "outcome": outcome, **more}
        return samples.event("cache", step=2, rank=rank, compile_id="0/1", detail=detail)

    near = {"nearest": "0/0", "differs": ["example_inputs[0]"]}
    by_rank = {
        rank: [
            samples.head(rank, 2),
            lookup(rank, "aotautograd", "miss"),
            lookup(rank, "fx_graph", "hit"),
            lookup(rank, "fx_graph", "miss", **near),
        ]
        for rank in (0, 1)
    }
    narrator = Narrator(samples.write_run(tmp_path / "run", by_rank))
    narrator.poll()
    assert capsys.readouterr().err == "", "more lookups of this compile may come"
    narrator.end(0)
    assert capsys.readouterr().err.splitlines()[0] == (
        "cftdiag: step 2, ranks 0-1, compile 0/1 of layers.0: 2 x AOTAutograd cache miss, 2 x FX graph cache hit, "
        "2 x FX graph cache miss, differs from 0/0 in example_inputs[0]"
    )


def test_an_event_waits_a_moment_for_the_other_ranks(tmp_path: Path, capsys: Any) -> None:
    by_rank = {
        0: [samples.head(0, 2), samples.event("recompile", step=5, detail={"cause": "seq_len"})],
        1: [samples.head(1, 2)],
    }
    narrator = Narrator(samples.write_run(tmp_path / "run", by_rank))
    narrator.poll()
    assert capsys.readouterr().err == ""
    narrator.end(0)
    assert capsys.readouterr().err.startswith("cftdiag: step 5, rank 0, recompile of layers.0")


def test_run_watch_and_report_count_alike(tmp_path: Path, capsys: Any) -> None:
    """A backward graph belongs to its forward's compile, and one that failed is none."""
    by_rank = {}
    for rank in (0, 1):
        failed = samples.event("compile", step=1, rank=rank, detail={"status": "RuntimeError"})
        backward = samples.event("compile", step=1, rank=rank, region="backward", detail={"status": "ok"})
        again = samples.event("recompile", step=5, rank=rank, detail={"cause": "seq_len"})
        by_rank[rank] = [
            samples.head(rank, 2),
            failed,
            samples.compiled(rank=rank),
            backward,
            again,
            samples.compiled(step=5, rank=rank, compile_id="0/1"),
        ]
    path = samples.write_run(tmp_path / "run", by_rank)
    Narrator(path).end(0)
    assert capsys.readouterr().err.splitlines()[-1].startswith("cftdiag: ranks 0-1: 4 compiles, 2 recompiles")
    view = View(path)
    view.refresh()
    [(_, _, counts)] = view.block_rows()
    assert (counts["compile"], counts["recompile"]) == (4, 2)
    data = report(path)
    assert [(row["compiles"], row["recompiles"]) for row in data["by_rank"]] == [(2, 1), (2, 1)]
    page = as_check(data)
    assert sorted((c["rank"], c["compile_id"]) for c in page["compiles"]) == [
        (0, "0/0"),
        (0, "0/1"),
        (1, "0/0"),
        (1, "0/1"),
    ]
    assert "0/0 | layers.0, rank 1 |" in markdown.render(page)


def test_one_rank_is_one_rank(tmp_path: Path) -> None:
    path = samples.write_run(tmp_path / "run", {0: [samples.head(), samples.compiled()]})
    page = as_check(report(path))
    assert page["subject"]["model_class"] == "1 rank, 0 steps"
    assert "rank" not in page["compiles"][0]


def test_a_start_that_failed_leaves_nothing_and_can_be_tried_again(tmp_path: Path, capsys: Any) -> None:
    where = tmp_path / "run"
    assert run(["run", "--run-dir", str(where), "--", str(tmp_path / "no-such-command")]) == 2
    assert "cannot start" in capsys.readouterr().err
    assert not where.exists()
    where.mkdir()
    (where / "mine.txt").write_text("kept")
    assert run(["run", "--run-dir", str(where), "--", str(tmp_path / "no-such-command")]) == 2
    assert [p.name for p in where.iterdir()] == ["mine.txt"]


def test_a_run_in_which_nothing_happened_is_replaced_and_no_other(tmp_path: Path) -> None:
    where = tmp_path / "run"
    launch.prepare(where, ["a"], {})
    with pytest.raises(ValueError, match="already holds a run"):
        launch.prepare(where, ["b"], {})
    launch.note_end(where, 2)
    launch.prepare(where, ["c"], {})
    assert json.loads((where / "run.json").read_text())["command"] == ["c"]
    launch.note_end(where, 0)
    (where / "events" / "rank00000.jsonl").write_text("")
    with pytest.raises(ValueError, match="already holds a run"):
        launch.prepare(where, ["d"], {})


def test_watch_says_that_it_waits(tmp_path: Path, capsys: Any) -> None:
    assert run(["watch", str(tmp_path / "none"), "--wait", "0.3"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"waiting for {tmp_path / 'none'}, 0 s at most"
    assert "no run directory" in said[1]
