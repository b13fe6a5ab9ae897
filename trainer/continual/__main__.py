"""``python -m trainer.continual``: run all seeds and print the table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from trainer import continual
from trainer.continual.figures import render, table
from trainer.continual.methods import FORMS, METHODS, Method, parse
from trainer.continual.phases import Outcome, Plan, run_seed
from trainer.distributed import process_group


def _method(text: str) -> Method:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.continual", description=(continual.__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--steps", type=int, default=200, help="most steps of a task (default: 200)")
    parser.add_argument("--base-steps", type=int, default=1200, help="of the base task (default: 1200)")
    parser.add_argument(
        "--learning-rate", type=float, default=1e-3, help="of methods that name none (default: 1e-3)"
    )
    parser.add_argument(
        "--learned", type=float, default=0.3, help="loss at which a task is learned (default: 0.3)"
    )
    parser.add_argument(
        "--method",
        type=_method,
        action="append",
        metavar="METHOD",
        help=f"may be repeated: {FORMS}; osft with beside=all|blocks|none, gpm with keep=SHARE, all with lr=RATE (default: {'; '.join(METHODS)})",
    )
    parser.add_argument("--json", type=Path, help="write every measurement to this file, after each method")
    asked = parser.parse_args(arguments)
    if min(asked.seeds, asked.steps, asked.base_steps) < 1:
        parser.error("--seeds, --steps and --base-steps are at least 1")
    for flag, value in (("--learning-rate", asked.learning_rate), ("--learned", asked.learned)):
        if not 0 < value < math.inf:
            parser.error(f"{flag} is a positive number, not {value}")
    if asked.json:
        try:
            asked.json.touch()  # before an hour of work
        except OSError as error:
            parser.error(f"cannot write {asked.json}: {error.strerror or error}")
    from transformers.utils import logging

    plan = Plan(
        steps=asked.steps, base_steps=asked.base_steps, lr=asked.learning_rate, level=asked.learned
    )  # fmt: skip
    methods = asked.method or [parse(text) for text in METHODS]
    outcomes: list[Outcome] = []
    torch.set_num_threads(1)
    logging.disable_progress_bar()

    def say(text: str) -> None:
        print(f"{time.process_time():6.0f} s of CPU: {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as directory, process_group("cpu"):
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
            for outcome in run_seed(seed, methods, plan, Path(directory) / str(seed), say=say):
                outcomes.append(outcome)
                if asked.json:
                    text = json.dumps([dataclasses.asdict(o) for o in outcomes], indent=1)
                    asked.json.write_text(text + "\n")
    print(f"torch {torch.__version__}, {asked.seeds} seeds, a task is learned at a loss of {asked.learned:g}")
    print(render(table(outcomes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
