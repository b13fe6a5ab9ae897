"""Run by torchrun on two ranks: several training runs one after another, in one start.

``torchrun --nproc-per-node 2 tests/integration/resume_worker.py RUNS`` where RUNS is a JSON list of
configurations. Two keys are this worker's: ``signal_at``: rank 1 alone sends itself SIGUSR1 once that step is
in the metrics; ``full_disk``: no file may grow beyond 64 KiB in these steps.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

import trainer
from trainer.distributed import process_group

torch.set_num_threads(1)
LIMIT = 64 * 1024


def wait_for(out: Path, step: int) -> None:
    """Until the metrics of a run have a line for ``step``."""
    while not any(f'"step": {step},' in line for line in lines(out)):
        time.sleep(0.002)


def lines(out: Path) -> list[str]:
    path = out / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def signal_at(out: Path, step: int) -> None:
    wait_for(out, step)
    os.kill(os.getpid(), signal.SIGUSR1)


def full_disk(out: Path, first: int, last: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wait_for(out, first)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    wait_for(out, last)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def run(values: dict[str, Any], rank: int) -> None:
    torch._dynamo.reset()
    at, full = values.pop("signal_at", None), values.pop("full_disk", None)
    out = Path(values["output_dir"])
    watchers = []
    if at is not None and rank == 1:
        watchers.append(threading.Thread(target=signal_at, args=(out, at)))
    if full is not None and rank == 0:
        watchers.append(threading.Thread(target=full_disk, args=(out, *full)))
    for watcher in watchers:
        watcher.start()
    result = trainer.run_training(values)
    for watcher in watchers:
        watcher.join()
    assert result.stopped == (at is not None)


with process_group("cpu") as ranks:
    for values in json.loads(Path(sys.argv[1]).read_text()):
        run(values, ranks.rank)
