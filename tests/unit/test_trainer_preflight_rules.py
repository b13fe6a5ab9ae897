"""Preflight: what the check finds stops the run in one line, or is told and the run goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trainer.preflight as preflight
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
