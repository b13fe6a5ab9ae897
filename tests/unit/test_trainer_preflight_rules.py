"""Preflight: what the check finds stops the run in one line, or is told and the run goes on."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import trainer.preflight as preflight
from cftdiag.check import CheckOptions, CheckReport
from cftdiag.findings import Finding, Remedy, Where
from trainer.config import TrainConfig


class _Report:
    def __init__(self, verdict: str, *findings: Finding) -> None:
        self._data: dict[str, Any] = {"verdict": verdict, "findings": [f.to_dict() for f in findings]}

    def to_dict(self) -> dict[str, Any]:
        return self._data


BREAK = Finding(
    kind="graph_break", cause="tensor.item", severity="error", blocks=("model.layers.*",), where=Where(file="m.py", line=7),
    remedies=(Remedy(summary="pass max_seqlen as an int"),),
)  # fmt: skip
RECOMPILE = Finding(kind="recompile", cause="seq_len", severity="warning", blocks=("model.layers.0",))


def _outcome(monkeypatch: pytest.MonkeyPatch, *found: Any) -> list[str]:
    monkeypatch.setattr(preflight, "check", lambda config, **_: _Report(*found))
    return preflight.preflight(
        TrainConfig(compile_model=True), world=1, device=torch.device("cpu"), settings={}
    )


def test_a_block_that_would_break_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"1 blocking findings, the first: graph_break tensor\.item in model\.layers\.\* at m\.py:7; pass max_seqlen as an int"
    with pytest.raises(ValueError, match=message):
        _outcome(monkeypatch, "not_viable", RECOMPILE, BREAK)


def test_no_conclusion_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no conclusion"):
        _outcome(monkeypatch, "error")


def test_a_recompile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _outcome(monkeypatch, "viable_with_recompiles", RECOMPILE)
    assert lines == ["preflight: viable_with_recompiles", "preflight: recompile seq_len in model.layers.0"]


def test_a_check_for_a_gpu_computes_as_the_gpu_will() -> None:
    assert preflight._dtype(TrainConfig(), cuda=True) == torch.bfloat16
    assert preflight._dtype(TrainConfig(device="cpu"), cuda=True) == torch.float32
    assert preflight._dtype(TrainConfig(dtype="float32"), cuda=True) == torch.float32


@pytest.mark.parametrize(("target", "cuda"), [("h200", "1"), ("cpu", "0"), (None, "0")])
def test_further_passes_meet_the_subject_while_it_is_there(
    monkeypatch: pytest.MonkeyPatch, target: str | None, cuda: str
) -> None:
    report = CheckReport(
        verdict="viable", subject={"name": "x"}, depth="joint", target=None, environment={}, blocks=(), findings=(), compiles=(),
        forecast={}, timing={}, undetermined=(),
    )  # fmt: skip
    monkeypatch.setattr(preflight, "run_check", lambda asked, progress: report)
    met: list[CheckOptions] = []

    def after(asked: CheckOptions, found: CheckReport) -> CheckReport:
        met.append(asked)
        return dataclasses.replace(found, payoff={"seen": True})

    config = TrainConfig(demo=True, compile_scope="block+loss")
    assert preflight.check(config, world=2, after=after, target=target).payoff == {"seen": True}
    [asked] = met
    assert asked.compile.scope == "block+loss" and asked.parallel.world_size == 2
    assert asked.patch.env["TRAINER_PREFLIGHT_CUDA"] == cuda
