"""Is what the base model knows in its largest singular directions, as OSFT takes it? ``python -m
trainer.continual.directions`` sets the others to zero, or these, and asks it again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from trainer.continual.phases import Plan, Tasks
from trainer.distributed import process_group
from trainer.model import open_source
from trainer.osft.frozen import local
from trainer.program import Program, build

SHARES = (0.25, 0.5, 0.75)


def without(program: Program, share: float, *, low: bool) -> None:
    """Set the ``share`` smallest (``low``) or largest singular values of each matrix of the blocks to zero, in
    place.
    """
    for block in program.blocks.values():
        for parameter in block.parameters():
            if parameter.ndim == 2:
                cut(local(parameter.data), share, low=low)


def cut(weight: torch.Tensor, share: float, *, low: bool) -> None:
    """The same of one matrix."""
    u, s, vh = torch.linalg.svd(weight, full_matrices=False)
    count = round(len(s) * share)
    s[len(s) - count if low else 0 : len(s) if low else count] = 0
    weight.copy_(u * s @ vh)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the base task for each seed and print what is left of it."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.continual.directions", description=(__doc__ or "").partition("?")[0] + "?"
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument(
        "--base-steps", type=int, default=1200, help="most steps of the base task (default: 1200)"
    )
    asked = parser.parse_args(arguments)
    if min(asked.seeds, asked.base_steps) < 1:
        parser.error("--seeds and --base-steps are at least 1")
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    plan = Plan(steps=1, base_steps=asked.base_steps, lr=1e-3, level=0.3)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory, process_group("cpu"), torch.no_grad():
        for seed in range(asked.seeds):
            work = Path(directory) / str(seed)
            with torch.enable_grad():
                tasks = Tasks(seed, plan, work)
            found.setdefault("whole", []).append(tasks.phase.after["base"].accuracy)
            for share in SHARES:
                for low in (True, False):
                    config = tasks.config(tasks.base, tasks.files["base"], work / "cut")
                    program = build(config, device=torch.device("cpu"), source=open_source(config))
                    without(program, share, low=low)
                    name = f"without the {'smallest' if low else 'largest'} {share:.0%}"
                    found.setdefault(name, []).append(tasks.measure(program, "base").accuracy)
    print("| directions of each weight | accuracy of the base task |\n|---|---|")
    for name, values in found.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"| {name} | {statistics.mean(values):.2f} +- {spread:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
