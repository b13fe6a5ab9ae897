"""Real processes side by side: a training command, the recipe's own worker, and one that is interrupted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cftdiag.bench import driver
from cftdiag.bench.arms import of_command
from tests.warm import Command, Warm

TRAIN = """
import sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50))
step = torch.compile(model, backend="eager", dynamic=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = [torch.randint(0, 50, (16,)) for _ in range(400)]
for ids in torch.utils.data.DataLoader(rows, batch_size=int(sys.argv[1]) if sys.argv[1:] else 4):
    loss = torch.nn.functional.cross_entropy(step(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
#: The loop of one arm, without a gate that ends it: its losses, and whether its parameters are finite.
WORKER = """
import json, sys
import torch
from cftdiag.bench import worker
losses = []
backward = torch.autograd.backward
def seen(tensors, *args, **kwargs):
    losses.append(float(tensors))
    return backward(tensors, *args, **kwargs)
torch.autograd.backward = seen
code = worker.main(sys.argv[1])
print("SAID" + json.dumps({"code": code, "losses": losses}))
"""
SHAPE = {
    "model_type": "qwen3", "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128,
}  # fmt: skip


def test_a_command_is_measured_with_and_without_compile(cftdiag_command: Command, tmp_path: Path) -> None:
    script, saved = tmp_path / "train.py", tmp_path / "bench.json"
    script.write_text(TRAIN)
    done = cftdiag_command(
        "bench", "-q", "--steps", "9", "--rounds", "1", "--turns", "step", "--keep", str(tmp_path / "kept"), "--json", str(saved),
        "--", sys.executable, str(script),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads(saved.read_text())
    eager, compiled = data["arms"]
    assert (eager["graphs"], compiled["graphs"], compiled["recompiles"]) == (0, 1, 0)
    assert eager["steps"] == compiled["steps"] == 7 and compiled["compile_seconds_cold"] > 0
    # 4 rows of 16 tokens, seen on their way out of the DataLoader
    assert [s["tokens"] for s in eager["samples"]] == [64] * 9
    assert eager["samples"][0]["loss"] == pytest.approx(4.0, abs=0.5) and compiled["loss"]["most"] < 1e-5
    against = compiled["against_eager"]
    assert (
        against["pairs"] == 7
        and against["gain"]["low"] <= against["gain"]["median"] <= against["gain"]["high"]
    )
    assert compiled["peak_bytes"] > 10**8
    assert "compiled" in done.stdout and "pays after" in done.stdout
    assert (tmp_path / "kept/round-1/compiled/run/events/rank00000.jsonl").is_file()


def test_ctrl_c_keeps_what_ran_and_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)

    def say(text: str) -> None:
        if "step 5 of" in text:
            raise KeyboardInterrupt

    plan = driver.Plan(
        arms=of_command([])[:1],
        command=lambda arm, number, folder: driver.Command(words=[sys.executable, str(script)]),
        steps=9,
        warmup=2,
        rounds=2,
        together=True,
        timeout=600,
    )
    [run], interrupted = driver.run(plan, say)
    assert interrupted and len(run.samples) == 4 and run.failed is None
    assert [s.seconds is None for s in run.samples] == [True, False, False, False]
    with pytest.raises(ProcessLookupError):
        os.kill(run.facts["pid"], 0)


def test_a_command_that_fails_says_why(cftdiag_command: Command, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise RuntimeError('no data')")
    done = cftdiag_command("bench", "-q", "--rounds", "1", "--", sys.executable, str(script))
    assert done.returncode == 3
    assert done.stderr == "error: arm eager: exit code 1 in step 1: RuntimeError: no data\n"


def spec(model: str, scope: str, **options: object) -> str:
    return json.dumps(
        {
            "model": model, "from_config": model.endswith(".json"), "scope": scope, "pad": options.pop("pad", None),
            "backend": "aot_eager", "steps": 3, "ranks": options.pop("ranks", 1), "options": options,
        }
    )  # fmt: skip


def losses(warm: Warm, text: str, ranks: int = 0) -> list[float]:
    done = warm.run(WORKER, text, ranks=ranks)
    said = json.loads(done.stdout.partition("SAID")[2].partition("\n")[0])
    assert said["code"] == 0, done.stderr
    return said["losses"]


def test_every_arm_of_a_model_trains_the_same(warm: Warm, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SHAPE))
    eager = losses(warm, spec(str(path), "none", lengths=[24, 40], batch_size=2))
    assert len(eager) == 3 and eager[2] < eager[0] + 0.1
    for arm in (
        spec(str(path), "block+loss", lengths=[24, 40], batch_size=2),
        spec(str(path), "none", lengths=[24, 40], batch_size=2, pad=32),
    ):
        assert losses(warm, arm) == pytest.approx(eager, rel=1e-4)


@pytest.mark.everything("the methods' own models; `make test` trains the plain one by the same worker")
def test_methods_and_models_of_ones_own_train(warm: Warm, tmp_path: Path) -> None:
    path, mine = tmp_path / "config.json", tmp_path / "mine.py"
    path.write_text(json.dumps(SHAPE))
    mine.write_text(
        "import torch\n\n\ndef build():\n    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))\n"
        "    return model, [{'input': torch.randn(4, 8)}]\n"
    )
    transform = "trainer.preflight:as_method"
    for method in ("osft", "lora"):
        found = losses(warm, spec(str(path), "block", lengths=[24], method=method, transform=transform))
        assert len(found) == 3 and all(abs(x) < 100 for x in found)
    assert losses(warm, spec(str(mine), "model")) == pytest.approx(
        losses(warm, spec(str(mine), "none")), rel=1e-4
    )
