"""A loss, a gradient or a weight that is not finite: no step, no checkpoint, and a run that can go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer
from trainer import loop
from trainer.checkpoints.layout import candidates, first_whole


def run(tiny: Path, out: Path, **values: Any) -> list[dict[str, Any]]:
    base = dict(
        model_name_or_path=str(tiny), random_init=True, data_path=str(tiny / "data.jsonl"), device="cpu", max_tokens_per_gpu=2048, batch_size=6,
        max_steps=6, learning_rate=1e-2, export=False, loss_chunks=2, output_dir=str(out), checkpoint_every=1, keep_checkpoints=9,
    )  # fmt: skip
    trainer.run_training({**base, **values})
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def poison(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    """The gradient of the embedding's output overflows in these forwards; the loss stays finite."""
    real = loop.build

    def build(*args: Any, **kwargs: Any) -> Any:
        program = real(*args, **kwargs)
        seen = 0

        def hook(_module: Any, _args: Any, output: torch.Tensor) -> None:
            nonlocal seen
            if output.requires_grad:
                seen += 1
                if seen in calls:
                    output.register_hook(lambda grad: grad * float("inf"))

        program.model.get_input_embeddings().register_forward_hook(hook)
        return program

    monkeypatch.setattr(loop, "build", build)


def test_an_infinite_gradient_is_neither_stepped_nor_saved(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tiny, tmp_path / "whole")
    with monkeypatch.context() as patch:
        poison(patch, {3})
        with pytest.raises(
            FloatingPointError,
            match=r"step 3: loss is \d.*, gradient norm (inf|nan); the batch is lines \[\d.*\] of the data; "
            r"the first bad gradient is that of model\.embed_tokens\.weight\. The step was not taken",
        ):
            run(tiny, tmp_path / "out")
    directory = tmp_path / "out" / "checkpoints"
    assert first_whole(candidates("auto", directory), print) == directory / "step-00000002"
    again = run(tiny, tmp_path / "out", resume="auto")
    assert [r["loss"] for r in again] == [r["loss"] for r in whole], "as if nothing had been"


def test_bad_steps_are_left_out_as_often_as_asked(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        poison(patch, {2, 4})
        records = run(tiny, tmp_path, skip_nonfinite=2)
    assert [r["step"] for r in records if r.get("skipped")] == [2, 4]
    assert all(r["loss"] is None for r in records if r.get("skipped"))
    assert all(r["loss"] > 0 for r in records if not r.get("skipped"))
    assert "skipped 2 of at most 2: step 4: loss is " in capsys.readouterr().err
    with monkeypatch.context() as patch:
        poison(patch, {2, 4})
        with pytest.raises(FloatingPointError, match="step 4: "):
            run(tiny, tmp_path / "one", skip_nonfinite=1)


def test_a_row_whose_own_loss_is_not_finite_is_named(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.build

    def build(*args: Any, **kwargs: Any) -> Any:
        program = real(*args, **kwargs)
        forward, calls = program.model.forward, 0

        def second_is_nan(*a: Any, **k: Any) -> Any:
            nonlocal calls
            calls += 1
            return forward(*a, **k) * (float("nan") if calls == 2 else 1.0)

        program.model.forward = second_is_nan
        return program

    monkeypatch.setattr(loop, "build", build)
    with pytest.raises(
        FloatingPointError, match=r"the loss of lines \[(\d+(, )?)+\] is not finite"
    ) as caught:
        run(tiny, tmp_path, max_tokens_per_gpu=256, batch_size=12)
    batch, bad = str(caught.value).split("the loss of lines")
    assert 0 < len(bad.split("]")[0].split(",")) < len(batch.split("lines [")[1].split("]")[0].split(","))


def test_weights_that_overflow_in_the_step_itself_are_not_saved(tiny: Path, tmp_path: Path) -> None:
    # A token that does not occur has no gradient: 0 / (0 + eps).
    with pytest.raises(FloatingPointError, match=r"step 1: model\..* is not finite, so that no checkpoint"):
        run(tiny, tmp_path, eps=0.0)
    assert first_whole(candidates("auto", tmp_path / "checkpoints"), print) is None
