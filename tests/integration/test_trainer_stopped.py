"""A scheduler's signal at any place of a run: it stops, leaves a mark, and the next start makes the same run of it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import trainer
from tests.warm import Warm
from trainer import loop
from trainer.signals import EXIT_STOPPED

STEPS = 4
BEFORE = [
    "trainer.loop.open_source",
    "trainer.loop.open_data",
    "trainer.loop.build",
    "trainer.loop.make_optimizer",
    "trainer.loop.write_assets",
    "trainer.loop.describe",
    "trainer.loop.rng.seed",
]
"""What a start calls, one after another."""


def run(tiny: Path, out: Path, **values: Any) -> Any:
    base = dict(
        model_name_or_path=str(tiny), random_init=True, data_path=str(tiny / "data.jsonl"), device="cpu", max_tokens_per_gpu=512, batch_size=6,
        max_steps=STEPS, learning_rate=1e-2, loss_chunks=1, output_dir=str(out), checkpoint_every=2, validation_split=0.2, validate_every=1,
        resume="auto", token_cache=str(tiny / "tokens"),
    )  # fmt: skip
    return trainer.run_training({**base, **values})


def losses(out: Path) -> list[tuple[int, float, float]]:
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(record["step"], record["loss"], record["val_loss"]) for record in records]


def signal_after(patch: pytest.MonkeyPatch, where: str, call: int = 1) -> None:
    """The ``call``-th time that it has done its work, this process gets SIGTERM, and then SIGUSR1."""
    from pydoc import locate

    owner, _, name = where.rpartition(".")
    found: Any = locate(owner)
    real, calls = getattr(found, name), []

    def both(*args: Any, **kwargs: Any) -> Any:
        value = real(*args, **kwargs)
        calls.append(name)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGUSR1)
        return value

    patch.setattr(found, name, both)


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float, float]]:
    out = tmp_path_factory.mktemp("whole")
    run(tiny, out, export=False)
    return losses(out)


def test_before_the_first_step_there_is_a_mark_and_nothing_else_is_lost(
    tiny: Path, tmp_path: Path, whole: list[tuple[int, float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in BEFORE:
        with monkeypatch.context() as patch:
            signal_after(patch, where)
            result = run(tiny, tmp_path)
        assert result.stopped and result.steps == 0, where
        assert json.loads((tmp_path / "stopped.json").read_text()) == {"step": 0, "signal": "SIGTERM"}, where
        assert not (tmp_path / "trainer.lock").exists(), where
        (tmp_path / "stopped.json").unlink()
    assert run(tiny, tmp_path).steps == STEPS
    assert losses(tmp_path) == whole
    assert not (tmp_path / "stopped.json").exists()


@pytest.mark.parametrize(
    ("where", "call", "last"),
    [
        ("trainer.loop._Trainer.validate", 1, 2),
        ("trainer.loop._Trainer.save", 1, 2),
        ("trainer.checkpoints.saver.Saver.wait", 2, 3),
    ],
)
def test_between_two_steps_the_next_one_is_the_last(
    tiny: Path,
    tmp_path: Path,
    whole: list[tuple[int, float, float]],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    call: int,
    last: int,
) -> None:
    with monkeypatch.context() as patch:
        signal_after(patch, where, call)
        result = run(tiny, tmp_path, export=False)
    assert result.stopped and result.steps == last
    assert json.loads((tmp_path / "stopped.json").read_text()) == {"step": last, "signal": "SIGTERM"}
    with monkeypatch.context() as patch:  # and in the start that continues it
        signal_after(patch, "trainer.loop.load")
        assert run(tiny, tmp_path, export=False).steps == last
    assert json.loads((tmp_path / "stopped.json").read_text())["step"] == last
    assert run(tiny, tmp_path, export=False).steps == STEPS
    assert losses(tmp_path) == whole


@pytest.mark.parametrize(
    "where", ["trainer.loop.Monitor.__exit__", "trainer.loop.export", "trainer.loop._Trainer.validate"]
)
def test_after_the_last_step_the_run_is_done(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with monkeypatch.context() as patch:
        signal_after(patch, where, STEPS if where.endswith("validate") else 1)
        result = run(tiny, tmp_path)
    assert (result.steps, result.stopped) == (STEPS, False)
    assert (tmp_path / "hf" / "config.json").exists() and not (tmp_path / "stopped.json").exists()


TWO = """
    import os, signal, sys
    from pathlib import Path
    import trainer.loop as loop
    from trainer.cli import main

    who, where, *arguments = sys.argv[1:]
    real = getattr(loop, where)

    def both(*args, **kwargs):
        value = real(*args, **kwargs)
        if os.environ["RANK"] in who.split(","):
            os.kill(os.getpid(), signal.SIGTERM)
        return value

    setattr(loop, where, both)
    try:
        main(arguments)
    finally:
        Path(arguments[-1], "code" + os.environ["RANK"]).write_text(str(sys.exc_info()[1]))
"""


@pytest.mark.parametrize(
    ("who", "where"),
    [
        ("0,1", "build"),
        pytest.param(
            "1", "anyone", marks=pytest.mark.everything("8 s; that both stop while the model is built stays")
        ),
    ],
)
def test_two_ranks_stop_before_their_first_step(
    tiny: Path, tmp_path: Path, warm: Warm, who: str, where: str
) -> None:
    arguments = [
        *("--model-name-or-path", str(tiny), "--random-init", "--data-path", str(tiny / "data.jsonl"), "--device", "cpu"),
        *("--max-steps", "4", "--max-tokens-per-gpu", "512", "--batch-size", "6", "--output-dir", str(tmp_path)),
    ]  # fmt: skip
    done = warm.run(TWO, who, where, *arguments, ranks=2, check=False)
    assert done.returncode == EXIT_STOPPED, done.stderr
    assert json.loads((tmp_path / "stopped.json").read_text())["step"] == (0 if where == "build" else 1)
    assert [(tmp_path / f"code{rank}").read_text() for rank in (0, 1)] == [str(EXIT_STOPPED)] * 2
    assert "Traceback" not in done.stderr


def test_the_loop_knows_what_a_start_calls() -> None:
    """The names above are those of the loop, so that a signal is really sent there."""
    assert all(hasattr(loop, where.split(".")[2]) for where in BEFORE)
