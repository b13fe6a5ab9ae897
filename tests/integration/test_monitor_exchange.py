"""Ranks that share no directory: events come to rank 0 through the TCPStore."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cftdiag.monitor import load_run, report

ROOT = Path(__file__).resolve().parents[2]

# Each rank has a directory of its own, as on two hosts without a shared disk.
PROGRAM = """
import os, sys, time
sys.path.insert(0, {here!r})
import cftdiag, monitor_programs as p
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model, optimizer = p.build("eager")
run_dir = os.path.join(sys.argv[1], f"host{{rank}}" if sys.argv[2] == "apart" else "host0")
with cftdiag.Monitor(model, run_dir=run_dir, exchange="auto", quiet=True) as m:
    p.train(model, optimizer, [3, 3, 5 if rank == dist.get_world_size() - 1 else 3, 3])
    assert (m._outlet is None) == (sys.argv[2] == "local"), m._outlet
dist.barrier()
dist.destroy_process_group()
"""


def run(tmp_path: Path, ranks: int, where: str, local_world_size: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM.format(here=str(Path(__file__).parent)))
    # What tells a monitor that ranks run on several hosts is torchrun's LOCAL_WORLD_SIZE.
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(
        f"import os, runpy, sys\nos.environ['LOCAL_WORLD_SIZE'] = {local_world_size!r}\nrunpy.run_path({str(script)!r}, run_name='__main__')"
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(ranks),
        str(wrapper),
        str(tmp_path),
        where,
    ]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr
    assert "no exchange" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    "ranks", [2, pytest.param(4, marks=pytest.mark.everything("four interpreters; two ranks stay"))]
)
def test_rank_0_gets_the_events_of_all(tmp_path: Path, ranks: int) -> None:
    run(tmp_path, ranks, "apart", "1")
    data = report(tmp_path / "host0")
    assert data["ranks"] == ranks
    assert [row["steps"] for row in data["by_rank"]] == [4] * ranks
    assert all(row["ended"] for row in data["by_rank"])
    (alone,) = data["divergence"]
    assert (alone["step"], alone["ranks"], alone["waiting"]) == (3, [ranks - 1], list(range(ranks - 1)))
    assert not data["problems"]
    # The sender keeps its own, and what has arrived is the same.
    for rank in range(1, ranks):
        own = (tmp_path / f"host{rank}" / "events" / f"rank{rank:05d}.jsonl").read_text()
        assert (tmp_path / "host0" / "events" / f"rank{rank:05d}.jsonl").read_text() == own
    assert len(load_run(tmp_path / "host0").live) == ranks


@pytest.mark.everything("15 s; ranks of two hosts stay")
def test_a_shared_directory_is_found_and_written_once(tmp_path: Path) -> None:
    run(tmp_path, 2, "shared", "1")
    lines = [len(p.read_text().splitlines()) for p in sorted((tmp_path / "host0" / "events").iterdir())]
    assert len(lines) == 2
    assert [row["steps"] for row in report(tmp_path / "host0")["by_rank"]] == [4, 4]
    assert len(load_run(tmp_path / "host0").sessions) == 2


@pytest.mark.everything("two interpreters; what is exchanged between hosts stays")
def test_ranks_of_one_host_need_no_exchange(tmp_path: Path) -> None:
    run(tmp_path, 2, "local", "2")
    assert report(tmp_path / "host0")["ranks"] == 2
