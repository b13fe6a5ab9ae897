"""``cftdiag run`` around real commands: what it records, and that the command does not notice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from cftdiag.monitor import load_run, report

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("monitor_programs.py")
RUN = [sys.executable, "-m", "cftdiag", "run"]
PYTHON = [sys.executable, str(PROGRAMS)]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


def watch(
    run_dir: Path, command: list[str], *options: str, env: dict[str, str] | None = None, timeout: float = 1500
) -> subprocess.CompletedProcess[str]:
    merged = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    return subprocess.run(
        [*RUN, "--run-dir", str(run_dir), *options, "--", *command],
        env=merged,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=run_dir.parent,
    )


def test_recompile_is_told_with_block_cause_and_remedy(tmp_path: Path) -> None:
    done = watch(tmp_path / "run", [*PYTHON, "loop", "3,3,3,5"], "--warmup-steps", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    told = [line for line in done.stderr.splitlines() if "recompile of" in line]
    assert len(told) == 1
    assert (
        "step 4, rank 0, recompile of layers.0, batch 2 x 5: seq_len; guard tensor 'x' size mismatch at index 1. expected 3, actual 5; fix:"
        in told[0]
    )
    assert told[0].endswith("[after warm-up]")
    data = report(tmp_path / "run")
    assert data["verdict"] == "viable_with_recompiles"
    assert (data["ranks"], data["steps"], data["ended"]["exit_code"]) == (1, 4, 0)
    assert [(r["step"], r["block"], r["cause"], r["batch"]) for r in data["recompiles"]] == [
        (4, "layers.0", "seq_len", [2, 5])
    ]
    assert data["recompiles"][0]["seconds"] > 0
    assert [a["kind"] for a in data["alarms"]] == ["recompile_after_warmup"]


def test_two_ranks_under_torchrun_and_the_one_that_compiled_alone(tmp_path: Path) -> None:
    done = watch(tmp_path / "run", [*TORCHRUN, "2", str(PROGRAMS), "ranks", "3,3,5,5", "3,3,5,7"])
    assert done.returncode == 0, done.stderr
    data = report(tmp_path / "run")
    assert (data["ranks"], data["world_size"], data["steps"]) == (2, 2, 4)
    assert sorted((r["rank"], r["step"]) for r in data["recompiles"]) == [(0, 3), (1, 3), (1, 4)]
    (alone,) = data["divergence"]
    assert (alone["step"], alone["ranks"], alone["waiting"]) == (4, [1], [0])
    assert alone["guard"] == "tensor 'x' size mismatch at index 1. expected 5, actual 7"
    assert alone["batches"] == {"0": [[2, 5]], "1": [[2, 7]]}
    assert 0 < alone["waited"] <= alone["seconds"]
    assert "rank_divergent_recompile" in [f["cause"] for f in data["findings"]]
    assert "recompile of layers.0, batch 2 x 5: seq_len" in done.stderr
    # The agent imports torch and compiles nothing: it leaves no file.
    assert sorted(p.name for p in (tmp_path / "run" / "events").iterdir()) == [
        "rank00000.jsonl",
        "rank00001.jsonl",
    ]


def test_exit_code_passes_through(tmp_path: Path) -> None:
    done = watch(tmp_path / "run", [sys.executable, "-c", "import sys; sys.exit(5)"])
    assert done.returncode == 5
    assert "nothing was recorded" in done.stderr


def test_exception_is_an_event_and_exit_code_1(tmp_path: Path) -> None:
    done = watch(tmp_path / "run", [*PYTHON, "raises"])
    assert done.returncode == report(tmp_path / "run")["ended"]["exit_code"] == 1
    assert "RuntimeError: the training fell over" in done.stderr
    errors = report(tmp_path / "run")["errors"]
    assert [(e["type"], e["message"]) for e in errors] == [("RuntimeError", "the training fell over")]


def test_death_by_signal_passes_through_and_leaves_a_full_report(tmp_path: Path) -> None:
    done = watch(tmp_path / "run", [*PYTHON, "killed", str(int(signal.SIGKILL))])
    assert done.returncode == -signal.SIGKILL
    data = report(tmp_path / "run")
    assert data["ended"] | {"ended": 0} == {"ended": 0, "exit_code": 137, "signal": "SIGKILL"}
    assert [(r["step"], r["cause"]) for r in data["recompiles"]] == [(3, "seq_len")]
    assert not data["problems"]
    assert data["by_rank"][0]["ended"] is False


def test_signals_are_handed_on(tmp_path: Path) -> None:
    command = [*RUN, "--run-dir", str(tmp_path / "run"), "--", *PYTHON, "waits"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "got SIGUSR1\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "got SIGTERM\n"
    assert process.wait(1500) == 7


@pytest.mark.everything(
    "three interpreters; that an alarm raises is in test_monitor_inside.py, ends of a group stay"
)
def test_raise_ends_the_group_with_an_error(tmp_path: Path) -> None:
    command = [*TORCHRUN, "2", str(PROGRAMS), "ranks", "3,3,3,3,3,3", "3,3,3,5,3,3"]
    done = watch(tmp_path / "run", command, "--warmup-steps", "2", "--on-recompile", "raise")
    assert done.returncode != 0
    assert "MonitorAlarm: step 4, rank 1: compiled again after warm-up" in done.stderr
    assert report(tmp_path / "run")["steps"] <= 5


@pytest.mark.everything(
    "three interpreters; that one rank stops at its last step is tested in test_monitor_inside.py"
)
def test_max_steps_ends_every_rank_with_success(tmp_path: Path) -> None:
    done = watch(
        tmp_path / "run", [*TORCHRUN, "2", str(PROGRAMS), "ranks", "3,3,3,3,3,3"], "--max-steps", "3"
    )
    assert done.returncode == 0, done.stderr
    assert [row["steps"] for row in report(tmp_path / "run")["by_rank"]] == [3, 3]


@pytest.mark.everything("12 s; torchrun's ranks stay")
def test_spawned_ranks_have_their_own_files(tmp_path: Path) -> None:
    done = watch(tmp_path / "run", [*PYTHON, "spawned"])
    assert done.returncode == 0, done.stderr
    data = report(tmp_path / "run")
    assert [row["steps"] for row in data["by_rank"]] == [3, 3]
    assert {(r["rank"], tuple(r["batch"])) for r in data["recompiles"]} == {(0, (2, 5)), (1, (2, 6))}


@pytest.mark.parametrize(
    "context",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.everything("two more interpreters; forked workers stay")),
    ],
)
def test_data_workers_are_left_out(tmp_path: Path, context: str) -> None:
    done = watch(tmp_path / "run", [*PYTHON, "workers", context])
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    run = load_run(tmp_path / "run")
    assert len(run.sessions) == 1
    assert {e.code.qualname for e in run.events if e.kind == "compile" and e.code} == {"Block.forward"}


@pytest.mark.everything("two starts, 10 s; a rank that is one program stays")
def test_another_program_of_the_same_rank_gets_a_file_of_its_own(tmp_path: Path) -> None:
    done = watch(tmp_path / "run", [*PYTHON, "helper"])
    assert done.returncode == 0, done.stderr
    run = load_run(tmp_path / "run")
    assert sorted([s.step for s in session.steps] for session in run.sessions) == [[1, 2], [1, 2, 3]]


def test_nothing_is_imported_that_the_script_does_not_import(tmp_path: Path) -> None:
    script = "import sys; print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'cftdiag', 'numpy')))"
    done = watch(tmp_path / "run", [sys.executable, "-c", script])
    assert done.stdout == "[]\n"
    assert "nothing was recorded" in done.stderr
    done = watch(tmp_path / "run2", [*PYTHON, "imports"])
    plain = subprocess.run([*PYTHON, "imports"], capture_output=True, text=True)
    assert done.stdout == plain.stdout


def test_the_users_own_sitecustomize_and_pythonpath_are_kept(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text(
        "import builtins, sys\nbuiltins.mine = [__name__, __file__]\n"
    )
    script = "import sys, sitecustomize; print(mine); print(sitecustomize.__file__); print([p for p in sys.path if 'inject' in p])"
    env = {"PYTHONPATH": os.pathsep.join((str(tmp_path / "mine"), str(ROOT)))}
    done = watch(tmp_path / "run", [sys.executable, "-c", script], env=env)
    own = str(tmp_path / "mine" / "sitecustomize.py")
    assert done.stdout.splitlines() == [str(["sitecustomize", own]), own, "[]"]


def test_an_error_of_the_users_sitecustomize_looks_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("raise ValueError('mine')\n")
    env = {"PYTHONPATH": os.pathsep.join((str(tmp_path / "mine"), str(ROOT)))}
    script = [sys.executable, "-c", "print('still runs')"]
    plain = subprocess.run(script, env={**os.environ, **env}, capture_output=True, text=True)
    done = watch(tmp_path / "run", script, "--quiet", env=env)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert done.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]


def test_a_directory_that_vanishes_costs_one_warning(tmp_path: Path) -> None:
    code = textwrap.dedent(
        f"""
        import shutil, sys
        sys.path.insert(0, {str(PROGRAMS.parent)!r})
        import monitor_programs as p
        model, optimizer = p.build()
        p.train(model, optimizer, [3, 3, 5, 5, 6, 6], lambda step: step == 2 and shutil.rmtree({str(tmp_path / "run")!r}))
        print("done")
        """
    )
    done = watch(tmp_path / "run", [sys.executable, "-c", code])
    assert (done.returncode, done.stdout) == (0, "done\n")
    warnings = [line for line in done.stderr.splitlines() if "cannot write" in line]
    assert len(warnings) == 1, done.stderr
    assert not (tmp_path / "run").exists()


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "old" / "events").mkdir(parents=True)
    (tmp_path / "old" / "events" / "rank00000.jsonl").write_text("")
    for directory, command, said in (
        (tmp_path / "old", ["true"], "already holds a run; give another --run-dir"),
        (tmp_path / "new", ["no-such-command"], "cannot start no-such-command"),
        (Path("/proc/1/run"), ["true"], "cannot write the run directory"),
    ):
        done = subprocess.run(
            [*RUN, "--run-dir", str(directory), "--quiet", "--", *command],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.everything("10 s; unit/test_monitor_view.py shows who waits")
def test_the_view_shows_who_waits_while_it_lasts(tmp_path: Path) -> None:
    from cftdiag.monitor.run_state import View

    command = [
        *RUN,
        "--run-dir",
        str(tmp_path / "run"),
        "--quiet",
        "--",
        *TORCHRUN,
        "2",
        str(PROGRAMS),
        "stalls",
        "6",
    ]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    said = None
    try:
        view = View(tmp_path / "run")
        while process.poll() is None and said is None:
            view.refresh()
            waiting = view.waiting()
            if waiting is not None:
                said = (waiting.ranks, waiting.compiling, waiting.timeout_in, waiting.sentence(time.time()))
            time.sleep(0.1)
    finally:
        assert process.wait(1500) == 0
    assert said is not None
    assert said[:2] == ((0,), (1,))
    # gloo's default is 30 minutes.
    assert said[2] is not None
    assert 1700 < said[2] < 1800
    assert said[3].startswith("rank 0 waits for rank 1, ")
    view.refresh()
    assert view.finished
    data = report(tmp_path / "run")
    (alone,) = data["divergence"]
    assert (alone["ranks"], alone["batches"]) == ([1], {"0": [[2, 3]], "1": [[2, 7]]})
    assert alone["waited"] > 5


@pytest.mark.everything("10 s; payloads stay in test_capture_recorder.py")
def test_trace_and_payloads_on_request(tmp_path: Path) -> None:
    done = watch(tmp_path / "run", [*PYTHON, "loop", "3"], "--trace", "--payloads")
    assert done.returncode == 0, done.stderr
    run = load_run(tmp_path / "run")
    kept = {digest for event in run.events for digest in event.payloads.values()}
    assert kept
    assert {p.name for p in (tmp_path / "run" / "payloads").iterdir()} == kept
    assert list((tmp_path / "run" / "trace").glob("*.log"))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["command"][-2:] == ["loop", "3"]
