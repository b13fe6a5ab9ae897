"""Our losses against TRL's, on the same rows and weights."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.warm import Warm


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed")
def test_losses_and_gradients_are_those_of_trl(warm: Warm) -> None:
    done = warm.run(Path(__file__).with_name("trl_agreement.py"))
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"sigmoid", "ipo", "orpo", "dapo", "grpo", "dr_grpo", "iterations"}
    for name, (ours, theirs, apart, largest) in found.items():
        assert ours == pytest.approx(theirs, rel=1e-6), name
        assert apart < 1e-6 * max(1.0, largest), name
        assert largest > 0.01, name
