"""Real torchrun on two ranks: what happens to the ranks and the output directory when torchrun alone is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def command(tiny: Path, out: Path, steps: int, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trainer"),
        *("--model-name-or-path", str(tiny), "--random-init", "--data-path", str(tiny / "data.jsonl"), "--device", "cpu"),
        *("--batch-size", "6", "--max-tokens-per-gpu", "512", "--max-steps", str(steps), "--checkpoint-every", "2"),
        *("--no-export", "--output-dir", str(out), *more),
    ]  # fmt: skip


def steps_of(out: Path) -> list[int]:
    path = out / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.everything("three starts of torchrun; the lock itself is in tests/unit/test_trainer_lock.py")
def test_ranks_end_with_their_launcher_and_the_next_start_goes_on(tiny: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = tmp_path / "out"
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command(tiny, out, 100_000), cwd=ROOT, env=environment, stderr=log)
        try:
            while len(steps_of(out)) < 5:
                assert process.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.01)
            ranks = children(process.pid)
            assert len(ranks) == 2

            second = subprocess.run(
                command(tiny, out, 6), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
            )
            assert second.returncode == 1
            # The second rank says it too where torchrun takes its time.
            refused = [line for line in second.stderr.splitlines() if line.startswith("error: ")]
            assert len(refused) in (1, 2) and "in use by another run" in refused[0], second.stderr[-4000:]
            assert any(f"process {rank} on " in refused[0] for rank in ranks)
            assert all(runs(rank) for rank in ranks), "the first goes on"

            time.sleep(random.Random(7).uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
            process.wait()
            while any(runs(rank) for rank in ranks):
                time.sleep(0.01)
        finally:
            process.kill()
    last = max(steps_of(out))
    done = subprocess.run(
        command(tiny, out, last + 2, "--resume", "auto"),
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "took over" in done.stderr and "continues" in done.stderr
    assert steps_of(out) == list(range(1, last + 3)), "each step once"
