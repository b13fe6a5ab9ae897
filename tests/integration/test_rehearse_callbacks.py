"""What a trainer's callbacks do, told by their own calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import Warm

ROOT = Path(__file__).resolve().parents[2]


def test_calls_compiles_reads_and_changes_are_booked_on_their_callback(warm: Warm) -> None:
    program = """
    import torch
    from cftdiag import fastforward
    from cftdiag.monitor.monitor import Monitor
    from cftdiag.rehearse import callbacks, coverage

    monitor = Monitor(quiet=True)
    monitor.start()
    counts = callbacks.install(monitor)
    from transformers.trainer_callback import CallbackHandler, TrainerCallback, TrainerState

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return torch.nn.functional.dropout(self.linear(x), training=self.training)

    model = Model()
    model.compile(backend="eager")
    fastforward.mark_weights(model)

    class Sets(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            model.linear.weight.requires_grad_(False)
            model.temperature = 2.0  # a new attribute is none that a guard has compared

    class Runs(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            model.eval()
            self.on_log(args, state, control, model=model)  # its own, and counted once
            model.train()

        def on_log(self, args, state, control, model=None, **kwargs):
            model(torch.ones(2, 4)).sum().item()

    class Rests(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            pass

    handler = CallbackHandler([Sets(), Runs, Rests()], model, None, None, None)
    with coverage.CountingSkipMode(coverage.Counter(monitor.models, counts)):
        model(torch.ones(2, 4)).sum().backward()
        for _ in range(2):
            handler.call_event("on_step_end", None, TrainerState(), None)
    sets, runs, rests = counts.effects()
    assert [row.name for row in (sets, runs, rests)] == ["Sets", "Runs", "Rests"]
    assert [row.calls for row in (sets, runs, rests)] == [2, 2, 2]
    (change,) = sets.changes
    assert (change.step, change.attribute, change.names, change.before, change.after) == (
        1, "requires_grad", ("linear.weight",), True, False,
    )
    assert (runs.compiles, runs.recompiles, runs.reads, runs.changes) == (1, 1, 2, ()), runs
    assert runs.operators and not rests.operators and not rests.reads
    monitor.close()
    """
    warm.run(program)


@pytest.mark.everything("20 s of a Trainer; calls, reads and changes are booked in the test above")
def test_report_of_a_trainer_names_the_callback_that_recompiles(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("scripts") / "hf_callbacks.py")
    saved = tmp_path / "check.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "cftdiag",
            "check",
            "--no-verify",
            "--json",
            str(saved),
            "--",
            sys.executable,
            script,
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads(saved.read_text())["script"]["callbacks"]}
    (change,) = rows["Unfreeze"]["changes"]
    assert (change["step"], change["attribute"], change["count"]) == (3, "requires_grad", 11)
    assert change["causes"] == ["requires_grad"]
    assert rows["Sample"]["recompiles"] and rows["Sample"]["reads"] == 1 and not rows["Sample"]["changes"]
    assert not any(rows["CountSteps"][key] for key in ("compiles", "reads", "changes", "operators"))
    assert "requires_grad of model.layers.0" in " ".join(done.stdout.split())
