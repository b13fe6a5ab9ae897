"""What a rehearsed command gains on a GPU that is not here and whether it fits, from its own launches and tensors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cftdiag.payoff.estimate import CONTEXT_BYTES
from tests.warm import Command, Warm

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
    assert compiled["compile_seconds"] > 0
    eager, script = (
        json.loads(saved.read_text())["payoff"]["memory"][name] for name in ("eager", "compiled")
    )
    assert (
        eager["fits"] and script["fits"] and "fits 150.1 GB: yes at 32 x 64" in " ".join(done.stdout.split())
    )


ATTENTION = """
import sys
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(128), nn.LayerNorm(128)
        self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)
    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        x = x + self.out((q @ k.transpose(-1, -2) / 11.3).softmax(-1) @ v)
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(512, 128), nn.Linear(128, 512, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), ids.flatten())
def build(compiled):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Net().to(device)
    for block in model.blocks if compiled else ():
        block.compile()
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        model(torch.randint(0, 512, (4, 256), device=device)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, step
if __name__ == "__main__":
    model, optimizer, step = build(True)
    for _ in range(6):
        step()
"""
#: The same script with weights, and torch's own record of every allocation.
REAL = """
import json, sys
import torch
from torch.profiler import ProfilerActivity, profile
sys.path.insert(0, sys.argv[1])
import train
def recorded(run):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    total, found = 0, []
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        found.append(total)
    return found
model, optimizer, step = train.build(sys.argv[2] == "compiled")
step()
own = sum(p.numel() * 4 for p in model.parameters())
kept = []
left = recorded(lambda: kept.append(model(torch.randint(0, 512, (4, 256)))))[-1]
kept.clear()
print("TRUTH" + json.dumps({"kept": left, "peak": 3 * own + max(recorded(step))}))
"""


@pytest.mark.everything("two rehearsals and a minute of g++; what is counted is held in test_allocations.py")
def test_a_command_holds_what_its_real_run_allocates(
    cftdiag_command: Command, warm: Warm, tmp_path: Path
) -> None:
    script, saved = tmp_path / "train.py", tmp_path / "check.json"
    script.write_text(ATTENTION)
    done = cftdiag_command(
        "check", "--target", "h200", "--fit", "--steps", "3", "--no-verify", "--json", str(saved), "--", sys.executable, str(script),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    payoff = json.loads(saved.read_text())["payoff"]
    for how in ("eager", "compiled"):
        real = json.loads(warm.run(REAL, str(tmp_path), how).stdout.partition("TRUTH")[2])
        found = payoff["memory"][how]
        assert found["kept_for_backward"] == pytest.approx(real["kept"], rel=0.02), how
        assert found["peak"] - CONTEXT_BYTES == pytest.approx(real["peak"], rel=0.02), how
