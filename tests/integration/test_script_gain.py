"""What a rehearsed command gains on a GPU that is not here, from its own launches."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.warm import Command

TRAIN = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 64)).cuda()
step = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    loss = (step(torch.randn(32, 64, device="cuda")) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.everything(
    "two rehearsals in fresh interpreters; how launches are counted is in test_script_payoff.py"
)
def test_a_command_is_counted_with_and_without_compile(cftdiag_command: Command, tmp_path: Path) -> None:
    script, saved = tmp_path / "train.py", tmp_path / "check.json"
    script.write_text(TRAIN)
    done = cftdiag_command(
        "check", "--target", "h200", "--compile-scope", "all", "--steps", "3", "--no-verify", "--json", str(saved),
        "--", sys.executable, str(script),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    none, compiled = json.loads(saved.read_text())["payoff"]["scopes"]
    assert (none["scope"], compiled["scope"], compiled["graphs"]) == ("none", "script", 1)
    # GELU, LayerNorm and SiLU, forward and backward, are six launches of eager and fewer kernels
    assert compiled["kernels"] < none["kernels"]
    assert compiled["product_flops"] == none["product_flops"], "products are left as they are"
    assert "Gain on NVIDIA H200: the last step of the command" in done.stdout
