"""Two tasks in turn: how much of the first is forgotten, full fine-tuning against OSFT. ``python -m
trainer.continual --seeds 3``.

A tiny model learns a base task in full, then tasks A and B one after the other by each method, at equal steps
and learning rate. Each task starts from the exported model of the task before, so that OSFT decomposes the
weights anew. Less learning means less forgetting: the loss of task B is shown beside, and forgetting is also
compared at the point where all methods have learned task B equally well.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from cftdiag.recipe.packing import Step, epoch_steps
from trainer import demo, patterns
from trainer.batch import rank_batches
from trainer.config import TrainConfig
from trainer.data import open_data, shape_of
from trainer.distributed import process_group
from trainer.export import export
from trainer.model import open_source
from trainer.optim import learning_rate, make_optimizer
from trainer.program import Program, build
from trainer.records import Records
from trainer.step import Stepper

BATCH = 16
#: Tokens of a row: a little more than a batch.
ROW = 384
HELD_OUT = 96
#: Learning rate of the base task, and the loss at which it is learned: how soon that is differs between
#: seeds.
BASE_RATE, LEARNED = 6e-3, 0.1
TASKS = ("base", "A", "B")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """Held-out loss (nats per answered token: six letters and the end mark) of each task after some steps of
    training.
    """

    step: int
    loss: dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One method on one seed."""

    method: str
    seed: int
    before: Point
    """After the base task."""
    after_a: Point
    during_b: list[Point]
    """While task B is trained, the first at step 0 and the last at the end."""


def run_seed(
    seed: int, methods: Sequence[str], *, steps: int, base_steps: int, lr: float, every: int, work: Path
) -> list[Outcome]:
    """The base model of a seed, then both tasks by each method. A method is ``full`` or ``osft R`` with the
    share R of trained directions.

    Needs a process group of one rank.
    """
    rules = {
        "base": dict(patterns.BASE),
        "A": {"red": patterns.permutation(2 * seed)},
        "B": {"blue": patterns.permutation(2 * seed + 1)},
    }
    work.mkdir(parents=True, exist_ok=True)
    files = {
        t: patterns.write(work / f"{t}.jsonl", rules[t], count=4096 if t == "base" else 1024, seed=seed)
        for t in TASKS
    }
    held = {
        t: patterns.write(work / f"{t}.held.jsonl", rules[t], count=HELD_OUT, seed=seed + 1000) for t in TASKS
    }
    plain = work / "plain"
    demo.config(num_hidden_layers=2).save_pretrained(plain)
    demo.tokenizer().save_pretrained(plain)

    def phase(source: Path, task: str, method: str, out: Path) -> list[Point]:
        config = config_of(method, source=source, data=files[task], out=out, steps=steps, lr=lr, seed=seed)
        return train(config, held, every=every if task == "B" else steps)

    config = config_of(
        "full",
        source=plain,
        data=files["base"],
        out=work / "base",
        steps=base_steps,
        lr=BASE_RATE,
        seed=seed,
        random_init=True,
        warmup_steps=20,
    )
    before = train(config, held, every=50, until=("base", LEARNED))[-1]
    if before.loss["base"] > LEARNED:
        print(
            f"seed {seed}: the base task is not learned after {before.step} steps (loss {before.loss['base']:.2f})",
            file=sys.stderr,
        )
    outcomes = []
    for number, method in enumerate(methods):
        a, b = work / f"{number}.a", work / f"{number}.b"
        after_a = phase(work / "base", "A", method, a)[-1]
        outcomes.append(
            Outcome(
                method=method, seed=seed, before=before, after_a=after_a, during_b=phase(a, "B", method, b)
            )
        )
    return outcomes


def config_of(
    method: str, *, source: Path, data: Path, out: Path, steps: int, lr: float, seed: int, **values: Any
) -> TrainConfig:
    """The trainer's configuration of one phase."""
    name, _, ratio = method.partition(" ")
    if name == "osft":
        values |= {"osft": True, "osft_unfreeze_rank_ratio": float(ratio)}
    return TrainConfig(
        model_name_or_path=str(source), data_path=str(data), output_dir=str(out), max_steps=steps, learning_rate=lr, seed=seed, batch_size=BATCH,
        max_tokens_per_gpu=ROW, device="cpu", loss_chunks=1, **values,
    )  # fmt: skip


def train(
    config: TrainConfig, held: dict[str, Path], *, every: int, until: tuple[str, float] | None = None
) -> list[Point]:
    """Train as ``config`` says, measure every ``every`` steps, at the start and at the end, and export to
    ``output_dir``.

    ``until`` ends it at the first measurement at which a task's loss is that low.
    """
    source = open_source(config)
    program = build(config, device=torch.device("cpu"), source=source)
    data = open_data(config, source.tokenizer, vocabulary=source.config.vocab_size, world=1)
    stepper = Stepper(program, make_optimizer(program.model, config), config)
    measure = _measure(program, stepper, config, held)
    points = [Point(step=0, loss=measure())]
    batches = rank_batches(data.steps, data.train, rank=0, pad_id=source.tokenizer.pad_token_id, varlen=False)
    for number, (step, rows) in enumerate(batches, 1):
        stepper.step(rows, step.loss_tokens, lr=learning_rate(config, number, len(data.steps)))
        if number % every == 0 or number == len(data.steps):
            points.append(Point(step=number, loss=measure()))
            if until is not None and points[-1].loss[until[0]] <= until[1]:
                break
    export(program.model, source, Path(config.output_dir), dtype=torch.float32)
    return points


def _measure(
    program: Program, stepper: Stepper, config: TrainConfig, held: dict[str, Path]
) -> Callable[[], dict[str, float]]:
    sets: dict[str, tuple[list[Step], Any]] = {}
    tokenizer = program.source.tokenizer
    for task, path in held.items():
        records = Records(
            path, tokenizer, vocabulary=program.source.config.vocab_size, capacity=config.row_capacity
        )
        steps = list(
            epoch_steps(
                records.samples, shape_of(config, 1), batch_size=BATCH, seed=0, epoch=0, shuffle=False
            )
        )
        rows = [
            row
            for _, batches in rank_batches(
                steps, records, rank=0, pad_id=tokenizer.pad_token_id, varlen=False
            )
            for row in batches
        ]
        sets[task] = (steps, rows)

    def measure() -> dict[str, float]:
        program.model.eval()
        losses = {
            task: stepper.evaluate(rows).item() / sum(s.loss_tokens for s in steps)
            for task, (steps, rows) in sets.items()
        }
        program.model.train()
        return losses

    return measure


def at_level(points: Sequence[Point], task: str, level: float) -> Point:
    """Where the loss of ``task`` first came down to ``level``, linear between measurements; the last point
    when it never did.
    """
    for left, right in itertools.pairwise(points):
        high, low = left.loss[task], right.loss[task]
        if high > level >= low:
            share = (high - level) / (high - low)
            mixed = {t: left.loss[t] + share * (right.loss[t] - left.loss[t]) for t in left.loss}
            return Point(step=round(left.step + share * (right.step - left.step)), loss=mixed)
    return points[-1]


def rows_of(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The table: for each method the mean and the standard deviation over seeds of every figure, ``(mean,
    deviation)``.
    """
    levels = {
        seed: max(o.during_b[-1].loss["B"] for o in outcomes if o.seed == seed)
        for seed in {o.seed for o in outcomes}
    }
    table = []
    for method in dict.fromkeys(o.method for o in outcomes):
        figures: dict[str, list[float]] = {}
        for o in (o for o in outcomes if o.method == method):
            end, same = o.during_b[-1], at_level(o.during_b, "B", levels[o.seed])
            for name, value in {
                "A learned": o.after_a.loss["A"],
                "B learned": end.loss["B"],
                "A at the end": end.loss["A"],
                "A forgotten": end.loss["A"] - o.after_a.loss["A"],
                "base forgotten": end.loss["base"] - o.before.loss["base"],
                "same B: step": float(same.step),
                "same B: A": same.loss["A"],
                "same B: A forgotten": same.loss["A"] - o.after_a.loss["A"],
                "same B: base forgotten": same.loss["base"] - o.before.loss["base"],
            }.items():
                figures.setdefault(name, []).append(value)
        spread = {
            name: (statistics.mean(v), statistics.stdev(v) if len(v) > 1 else 0.0)
            for name, v in figures.items()
        }
        table.append({"method": method, **spread})
    return table


def render(table: Sequence[dict[str, Any]]) -> str:
    """The table as Markdown."""
    names = [name for name in table[0] if name != "method"]
    lines = ["| method | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in table:
        digits = {name: 0 if name.endswith("step") else 2 for name in names}
        cells = [f"{row[name][0]:.{digits[name]}f} +- {row[name][1]:.{digits[name]}f}" for name in names]
        lines.append(f"| {row['method']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratios(text: str) -> list[float]:
    try:
        ratios = [float(part) for part in text.split(",")]
    except ValueError:
        ratios = [-1.0]
    if not all(0 <= ratio <= 1 for ratio in ratios):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of shares between 0 and 1 such as 0.25,0.5")
    return ratios


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.continual", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of each task (default: 60)")
    parser.add_argument(
        "--base-steps", type=int, default=1200, help="most optimizer steps of the base task (default: 1200)"
    )
    parser.add_argument(
        "--learning-rate", type=float, default=1e-3, help="of both tasks and all methods (default: 1e-3)"
    )
    parser.add_argument(
        "--osft",
        type=_ratios,
        default=[0.25, 0.5],
        metavar="R,R",
        help="unfreeze rank ratios (default: 0.25,0.5)",
    )
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    asked = parser.parse_args(arguments)
    if min(asked.seeds, asked.steps, asked.base_steps) < 1:
        parser.error("--seeds, --steps and --base-steps are at least 1")
    if not 0 < asked.learning_rate < math.inf:
        parser.error(f"--learning-rate is a positive number, not {asked.learning_rate}")
    if asked.json:
        try:
            asked.json.touch()  # before an hour of work
        except OSError as error:
            parser.error(f"cannot write {asked.json}: {error.strerror or error}")
    from transformers.utils import logging

    methods = ["full", *(f"osft {ratio:g}" for ratio in asked.osft)]
    started = time.perf_counter()
    outcomes: list[Outcome] = []
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory, process_group("cpu"):
        for seed in range(asked.seeds):
            outcomes += run_seed(
                seed, methods, steps=asked.steps, base_steps=asked.base_steps, lr=asked.learning_rate, every=max(1, asked.steps // 20),
                work=Path(directory) / str(seed),
            )  # fmt: skip
            print(
                f"seed {seed}: {time.perf_counter() - started:.0f} s, {time.process_time():.0f} s of CPU",
                file=sys.stderr,
                flush=True,
            )
    if asked.json:
        asked.json.write_text(json.dumps([dataclasses.asdict(o) for o in outcomes], indent=1) + "\n")
    before = [o.before.loss for o in outcomes]
    print(
        f"torch {torch.__version__}, {asked.seeds} seeds, the base task learned, then {asked.steps} steps of A and {asked.steps} of B"
    )
    print("base model: " + ", ".join(f"loss {t} {statistics.mean(b[t] for b in before):.2f}" for t in TASKS))
    print(render(rows_of(outcomes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
