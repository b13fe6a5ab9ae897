"""The monitor with the trainers that people use, each the real one on a tiny model."""

from __future__ import annotations

import glob
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cftdiag.monitor import report
from tests.warm import Warm

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("monitor_hf.py")
RUN = [sys.executable, "-m", "cftdiag", "run"]


_SEE = pytest.mark.everything(
    "half a minute; the same Trainer is watched on two ranks and killed in `make test`"
)


def has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def start(
    *command: str, env: dict[str, str] | None = None, timeout: float = 1500
) -> subprocess.CompletedProcess[str]:
    merged = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})}
    return subprocess.run(command, env=merged, capture_output=True, text=True, timeout=timeout, cwd=ROOT)


@pytest.mark.everything("30 s; ranks of torchrun and deaths by signal stay in test_monitor_run.py")
def test_an_unmodified_trainer_script_on_two_ranks_killed(tmp_path: Path) -> None:
    """The whole promise: two ranks, no change to the script, every recompile told live, and a report after
    SIGKILL.
    """
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        str(SCRIPT),
        "trainer",
        str(tmp_path / "out"),
    ]
    done = start(
        *RUN, "--run-dir", str(tmp_path / "run"), "--warmup-steps", "2", "--", *torchrun, env={"KILL_AT": "4"}
    )
    assert done.returncode != 0
    assert "trained" not in done.stdout
    # One line, or one a rank where a slow machine lets them compile seconds apart.
    told = [
        line
        for line in done.stderr.splitlines()
        if line.startswith("cftdiag: step 3") and "recompile of" in line
    ]
    assert told
    for line in told:
        assert ", recompile of <root>, batch 2 x 24: seq_len; guard" in line
        assert "; fix: " in line
    data = report(tmp_path / "run")
    # The last second of steps may be lost with the process; no event is.
    assert data["ranks"] == 2
    assert data["steps"] in (3, 4)
    assert {(r["rank"], r["step"], r["cause"]) for r in data["recompiles"]} == {
        (0, 3, "seq_len"),
        (1, 3, "seq_len"),
    }
    assert all(r["seconds"] > 0 for r in data["recompiles"])
    assert [row["ended"] for row in data["by_rank"]] == [False, False]
    found = {(f["kind"], f["cause"]) for f in data["findings"]}
    assert ("recompile", "seq_len") in found
    # DistributedDataParallel itself logs in the compiled region.
    assert ("graph_break", "unsupported_call") in found
    assert data["problems"] == []


@pytest.mark.parametrize(
    ("kind", "needs", "steps"),
    [
        pytest.param("trainer", "accelerate", 4, marks=_SEE),
        pytest.param("accelerate", "accelerate", 2, marks=_SEE),
        pytest.param("sft", "trl", 4, marks=_SEE),
    ],
)
def test_trainers(tmp_path: Path, kind: str, needs: str, steps: int) -> None:
    if not has(needs):
        pytest.skip(f"{needs} is not installed")
    done = start(sys.executable, str(SCRIPT), kind, str(tmp_path / "out"), str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trained" in done.stdout
    data = report(tmp_path / "run")
    assert (data["ranks"], data["steps"]) == (1, steps)
    assert "seq_len" in {r["cause"] for r in data["recompiles"]}
    assert {r["block"] for r in data["recompiles"]} == {"<root>"}
    assert "never_run" not in [a["kind"] for a in data["alarms"]]
    assert data["by_rank"][0]["ended"]


SINKS = """
import sys
sys.path.insert(0, "tests/integration")
import torch, cftdiag, monitor_programs as p
from cftdiag.monitor.sinks import LoggingSink, TensorBoardSink, WandbSink
import logging
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(message)s")
model, optimizer = p.build()
sinks = [make() for make in SINKS]
with cftdiag.Monitor(model, warmup_steps=2, sinks=sinks, quiet=True) as m:
    p.train(model, optimizer, [3, 3, 3, 5, 3])
assert m._warned is False
"""


def test_tensorboard(warm: Warm, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    warm.run("SINKS = [lambda: TensorBoardSink(sys.argv[1])]\n" + SINKS, str(tmp_path))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    values = {s.step: s.value for s in events.Scalars("cftdiag/recompiles")}
    assert values[4] == 1.0
    assert min(values.values()) == 0.0
    assert {s.step for s in events.Scalars("cftdiag/compile_seconds")} == set(values)


def test_wandb_offline(warm: Warm, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    code = "SINKS = [lambda: WandbSink(project='p', mode='offline', dir=sys.argv[1])]\n" + SINKS
    warm.run(code, str(tmp_path), env={"WANDB_SILENT": "true"})
    (file,) = glob.glob(str(tmp_path / "wandb" / "offline-run-*" / "*.wandb"))
    kept = Path(file).read_bytes()
    assert b"cftdiag/recompiles" in kept
    assert b"recompile_after_warmup" in kept


def test_logging(warm: Warm) -> None:
    done = warm.run("SINKS = [lambda: LoggingSink('mine')]\n" + SINKS)
    told = [line for line in done.stdout.splitlines() if line.startswith("mine ")]
    assert told[0].startswith("mine rank 0 step 4: recompile of layers.0: seq_len; guard")
    assert told[1].startswith("mine rank 0 step 4: recompile_after_warmup: ")


def test_a_sink_that_fails_is_left_out(warm: Warm) -> None:
    code = """
class Broken(LoggingSink):
    def step(self, step, seconds):
        raise OSError("tracker gone")
sinks = [Broken()]
with cftdiag.Monitor(model, sinks=sinks) as m:
    p.train(model, optimizer, [3, 3, 3])
print(m.steps, len(m._sinks))
"""
    done = warm.run("SINKS = []\n" + SINKS + code)
    assert done.stdout.splitlines()[-1] == "3 0"
    assert done.stdout.count("tracker gone") == 1
