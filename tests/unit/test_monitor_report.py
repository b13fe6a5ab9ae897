"""Reading runs back and reporting them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import monitor_samples as samples
import pytest

from cftdiag.details import LimitDetail
from cftdiag.events import Event
from cftdiag.monitor import is_run, load_run, report
from cftdiag.monitor.divergence import divergences, ranks_text
from cftdiag.monitor.run_files import Session, steps_of
from cftdiag.monitor.run_findings import context
from cftdiag.report import run_terminal as run_view


def two_ranks(rank_1_diverges: bool = True) -> dict[int, list[Event]]:
    by_rank = {}
    for rank in (0, 1):
        shape = [2, 640] if rank == 1 and rank_1_diverges else [2, 512]
        middle = (
            [
                samples.event("recompile", step=5, rank=1),
                samples.compiled(step=5, rank=1, seconds=3.0, compile_id="0/1"),
            ]
            if rank == 1 and rank_1_diverges
            else []
        )
        by_rank[rank] = [
            samples.head(rank, 2),
            samples.compiled(rank=rank, seconds=4.0),
            samples.steps(1, [4.5, 0.5, 0.5, 0.5], rank, [[[2, 512]]] * 4),
            *middle,
            samples.steps(5, [3.6, 0.5], rank, [[shape], [[2, 512]]]),
            samples.end(6, rank),
        ]
    return by_rank


def test_what_is_a_run(tmp_path: Path) -> None:
    assert not is_run(tmp_path)
    (tmp_path / "a.log").write_text("")
    assert is_run(tmp_path)
    assert is_run(samples.write_run(tmp_path / "run", {}))
    with pytest.raises(ValueError, match="no such directory"):
        load_run(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="neither a run directory"):
        report(tmp_path / "empty")


def test_the_report_has_the_shape_that_is_promised(tmp_path: Path) -> None:
    data = report(
        samples.write_run(
            tmp_path / "run", two_ranks(), {"command": ["torchrun", "t.py"], "exit_code": 0, "ended": 1010.0}
        )
    )
    assert json.loads(json.dumps(data)) == data
    assert data["schema"] == "cftdiag.run/1"
    assert (data["verdict"], data["ranks"], data["steps"]) == ("viable_with_recompiles", 2, 6)
    assert data["environment"]["torch"] == "2.13.0"
    for key in ("compiles", "recompiles", "graph_breaks", "findings"):
        assert isinstance(data[key], list)
    (recompile,) = data["recompiles"]
    assert (recompile["rank"], recompile["step"], recompile["block"], recompile["cause"]) == (
        1,
        5,
        "layers.0",
        "seq_len",
    )
    assert recompile["seconds"] == 3.0


def test_a_rank_that_compiles_alone(tmp_path: Path) -> None:
    run = load_run(samples.write_run(tmp_path / "run", two_ranks()))
    (alone,) = divergences(run.events, run.steps, run.ranks)
    assert (alone.step, alone.ranks, alone.waiting, alone.seconds, alone.waited) == (5, (1,), (0,), 3.0, 3.0)
    assert alone.batches == {0: [(2, 512)], 1: [(2, 640)]}
    finding = next(f for f in run.findings if f.cause == "rank_divergent_recompile")
    assert finding.evidence == (
        "step 5: rank 1 compiled layers.0 for 3.00 s while rank 0 waited; batch 2 x 640 against 2 x 512",
    )
    assert (finding.kind, finding.severity, finding.steps, finding.lengths) == (
        "perf",
        "warning",
        (5,),
        (640,),
    )


def test_ranks_that_compile_together_do_not_diverge(tmp_path: Path) -> None:
    by_rank = {
        rank: [samples.head(rank, 2), samples.event("recompile", step=5, rank=rank)] for rank in (0, 1)
    }
    run = load_run(samples.write_run(tmp_path / "run", by_rank))
    assert divergences(run.events, run.steps, run.ranks) == []
    (finding,) = run.findings
    assert (finding.cause, finding.count, finding.evidence[0]) == ("seq_len", 2, "on ranks 0-1")


@pytest.mark.parametrize(
    ("start", "hits", "limit"), [(8, [4], 4), (8, [16, 12], 16), (6, [], 6), (None, [], 8), (None, [3], 3)]
)
def test_the_limit_that_was_hit_counts_not_the_one_at_the_start(
    start: int | None, hits: list[int], limit: int
) -> None:
    events = [Event(kind="limit_hit", time=0.0, detail=LimitDetail(limit=n)) for n in hits]
    head = {} if start is None else {"settings": {"limit": start}}
    assert context(Session(rank=0, file="rank0", head=head, events=events)).limit == limit


def test_a_rank_waits_no_longer_than_its_step(tmp_path: Path) -> None:
    by_rank = two_ranks()
    by_rank[0][3] = samples.steps(5, [1.0, 0.5], 0, [[[2, 512]]] * 2)
    run = load_run(samples.write_run(tmp_path / "run", by_rank))
    assert divergences(run.events, run.steps, run.ranks)[0].waited == 1.0


def test_a_killed_run_reports_fully(tmp_path: Path) -> None:
    events = [
        samples.head(warmup_steps=3),
        samples.compiled(),
        samples.event("recompile", step=5),
        samples.steps(1, [0.1] * 4),
    ]
    path = samples.write_run(tmp_path / "run", {0: events})
    with open(path / "events" / "rank00000.jsonl", "a") as file:
        file.write('{"schema":"cftdiag.event/1","kind":"comp')
    data = report(path)
    assert not data["problems"]
    assert [a["kind"] for a in data["alarms"]] == ["recompile_after_warmup"]
    assert data["by_rank"][0]["ended"] is False
    assert "no end noted by rank 0: still running, or killed" in shown(data)


def test_a_damaged_line_costs_that_line(tmp_path: Path) -> None:
    path = samples.write_run(tmp_path / "run", {0: [samples.head(), samples.compiled()]})
    file = path / "events" / "rank00000.jsonl"
    file.write_text("half a li\n" + file.read_text() + '{"schema": "other/1"}\n')
    data = report(path)
    assert len(data["compiles"]) == 1
    assert [p.split(": ")[0] for p in data["problems"]] == ["rank00000.jsonl:1", "rank00000.jsonl:4"]


def test_a_restarted_rank_is_two_sessions(tmp_path: Path) -> None:
    one = [samples.head(), samples.compiled(), samples.steps(1, [0.1] * 3)]
    run = load_run(samples.write_run(tmp_path / "run", {0: [*one, *one]}))
    assert [(len(s.events), len(s.steps)) for s in run.sessions] == [(1, 3), (1, 3)]
    # Compile 0/0 of the second process is no recompile of the first.
    assert run.findings == ()


def test_a_batch_of_steps_unfolds() -> None:
    first, second = steps_of(samples.steps(7, [1.0, 0.5], 2, [[[2, 8], [2, 16]], []], time=100.0))
    assert (first.rank, first.step, first.seconds, first.time, first.shapes) == (
        2,
        7,
        1.0,
        99.5,
        ((2, 8), (2, 16)),
    )
    assert (second.step, second.time, second.shapes) == (8, 100.0, ())


def test_nothing_compiled_is_no_verdict(tmp_path: Path) -> None:
    data = report(samples.write_run(tmp_path / "run", {0: [samples.head(), samples.steps(1, [0.1])]}))
    assert data["verdict"] == "error"
    assert data["problems"] == ["nothing was compiled"]


def test_the_break_even_step(tmp_path: Path) -> None:
    by_rank = {0: [samples.head(), samples.compiled(seconds=10.0), samples.steps(1, [10.5, 0.5, 0.5, 0.5])]}
    path = samples.write_run(tmp_path / "run", by_rank)
    assert report(path)["timing"]["break_even_step"] is None
    assert report(path, eager=0.75)["timing"]["break_even_step"] == 41
    slower = report(path, eager=0.4)["timing"]
    assert (slower["break_even_step"], slower["speedup"]) == (None, 0.8)
    eager = samples.write_run(tmp_path / "eager", {0: [samples.head(), samples.steps(1, [3.0, 0.75, 0.75])]})
    assert report(path, eager=eager)["timing"]["break_even_step"] == 41


def test_frames(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    run = load_run(samples.write_run(tmp_path / "run", two_ranks()))
    events = run.frame("events")
    assert list(events[events.kind == "recompile"].block) == ["layers.0"]
    assert events[events.kind == "compile"].seconds.sum() == 11.0
    assert len(run.frame("steps")) == 12
    assert set(run.frame("findings").cause) == {"seq_len", "rank_divergent_recompile"}
    with pytest.raises(ValueError, match="give 'events'"):
        run.frame("other")


def test_ranks_in_words() -> None:
    assert ranks_text([1]) == "rank 1"
    assert ranks_text([0, 2, 3, 4, 7]) == "ranks 0, 2-4, 7"


def shown(data: dict[str, Any]) -> str:
    out = io.StringIO()
    run_view.show(data, file=out, width=120)
    return out.getvalue()


def test_the_terminal_view(tmp_path: Path) -> None:
    text = shown(
        report(
            samples.write_run(tmp_path / "run", two_ranks(), {"exit_code": 0, "ended": 1010.0}), eager=0.75
        )
    )
    for line in (
        "  torch 2.13.0",
        "  ended with exit code 0",
        "     1  h         6         2           1       0           0        7.0",
        "     1  layers.0  0-1              4.00  first",
        "     5  layers.0  1                3.00  seq_len",
        "  seq_len  Block  layers.0      1     3.00  5",
        "     5  1      0           3.00  3.00  2 x 640 against 2 x 512  tensor 'x' size mismatch at index 1. expected 512, actual 640",
        "  ranks waiting for another's compile 3.0 s",
        "  an eager step 750.0 ms: the compile time is earned back at step 29",
        "viable_with_recompiles: torch.compile held, with recompiles: 1 recompile over 6 steps of 2 ranks",
    ):
        assert line in text.splitlines(), text
    after = text[text.index("\nviable_with_recompiles: ") :]
    assert "\nChange first\n" in after and "  1. block.compile(dynamic=True) [not proved]\n" in after
    out = io.StringIO()
    run_view.show(report(tmp_path / "run"), quiet=True, file=out)
    assert len(out.getvalue().splitlines()) == 1


@pytest.mark.parametrize("form", ["markdown", "html", "sarif", "junit"])
def test_other_forms(tmp_path: Path, form: str) -> None:
    from cftdiag.cli.main import run as cftdiag

    path = samples.write_run(tmp_path / "run", two_ranks())
    assert cftdiag(["report", str(path), f"--{form}", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out").read_text()
    assert "rank_divergent_recompile" in text
    assert "layers.0" in text


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cftdiag.cli.main import run as cftdiag

    path = samples.write_run(tmp_path / "run", two_ranks())
    assert cftdiag(["report", str(path), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "cftdiag.run/1"
    assert cftdiag(["report", str(path), "-q", "--eager", "0.75"]) == 0
    assert capsys.readouterr().out.startswith("viable_with_recompiles: ")
    (tmp_path / "empty").mkdir()
    assert cftdiag(["report", str(tmp_path / "empty")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
