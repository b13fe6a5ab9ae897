"""Training the tasks of one seed one after the other, by the trainer's own parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cftdiag.recipe.packing import IGNORE, Step
from trainer import demo, patterns
from trainer.batch import Batch, rank_batches
from trainer.config import TrainConfig
from trainer.continual.methods import Method, Orthogonal
from trainer.data import Data, open_data
from trainer.export import export
from trainer.methods import method_of
from trainer.model import open_source
from trainer.optim import learning_rate, make_optimizer
from trainer.program import Program, build
from trainer.step import Stepper

TASKS = ("base", "A", "B", "C")
WORDS = {"A": "red", "B": "blue", "C": "green"}
BATCH, ROW, HELD_OUT = 16, 384, 64
"""Samples of a batch, tokens of a row (a little more than a batch), and held-out samples of each task."""
BASE_RATE, BASE_SAMPLES = 6e-3, 2048


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """On held-out samples of a task, per answered token (six letters and the end mark)."""

    loss: float
    """Nats."""
    accuracy: float
    """Share of tokens that are the most probable ones, given the right tokens before."""


Scores = Mapping[str, Score]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One task was trained."""

    task: str
    steps: int
    learned: bool
    """Its loss came down to the level; otherwise it had all steps that it may have."""
    after: Scores
    """Of all tasks."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One method on one seed."""

    method: str
    seed: int
    untrained: Scores
    """Of the randomly initialised model."""
    phases: Sequence[Phase]
    """Of all tasks in order, the base task first."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is the same for all methods."""

    steps: int
    """Most optimizer steps of a task."""
    base_steps: int
    lr: float
    level: float
    """Held-out loss at which a task is learned."""
    every: int = 10
    """Steps between two looks at it."""


class Tasks:
    """The data of a seed, and the base model that all methods start from. Needs a process group of one rank."""

    def __init__(self, seed: int, plan: Plan, work: Path) -> None:
        """Trains the base task."""
        self._seed, self._work, self.plan = seed, work, plan
        rules = {"base": dict(patterns.BASE)}
        for number, (task, word) in enumerate(WORDS.items()):
            rules[task] = {word: patterns.permutation(len(WORDS) * seed + number)}
        work.mkdir(parents=True, exist_ok=True)
        counts = {t: BASE_SAMPLES if t == "base" else plan.steps * BATCH for t in TASKS}
        self.files = {
            t: patterns.write(work / f"{t}.jsonl", rules[t], count=counts[t], seed=seed) for t in TASKS
        }
        held = {
            t: patterns.write(work / f"{t}.held.jsonl", rules[t], count=HELD_OUT, seed=seed + 1000)
            for t in TASKS
        }
        start = work / "start"
        demo.config(num_hidden_layers=2).save_pretrained(start)
        demo.tokenizer().save_pretrained(start)
        self.measure = Measure({t: self.config(start, held[t], work / "held", max_epochs=1) for t in TASKS})
        self.base = work / "base"
        config = self.config(
            start, self.files["base"], self.base, max_steps=plan.base_steps, learning_rate=BASE_RATE,
            warmup_steps=20, random_init=True,
        )  # fmt: skip
        self.untrained, self.phase = train(config, "base", self)

    def config(self, source: Path, data: Path, out: Path, **values: Any) -> TrainConfig:
        """What all runs of a seed have in common, and ``values``."""
        return TrainConfig(
            model_name_or_path=str(source), data_path=str(data), output_dir=str(out), seed=self._seed,
            token_cache=str(self._work / "tokens"), batch_size=BATCH, max_tokens_per_gpu=ROW, device="cpu",
            loss_chunks=1, **values,
        )  # fmt: skip


def run_seed(
    seed: int, methods: Sequence[Method], plan: Plan, work: Path, *, say: Callable[[str], None]
) -> Iterator[Outcome]:
    """The base model of a seed, then the other tasks by each method. Needs a process group of one rank."""
    tasks = Tasks(seed, plan, work)
    say(f"seed {seed}: base: {_line(tasks.phase)}")
    for place, method in enumerate(methods):
        phases, before, orthogonal = [tasks.phase], tasks.base, method.constraint()
        for number, task in enumerate(WORDS, 1):
            data = tasks.files[task]
            if method.name == "replay":
                data = _mixed([tasks.files[t] for t in TASKS[: number + 1]], work / f"{place}.{task}.jsonl")
            out = work / f"{place}.{task}"
            options = method.options(number, len(WORDS))
            made = tasks.config(
                before, data, out, max_steps=plan.steps, learning_rate=method.lr or plan.lr, **options
            )
            earlier = tasks.measure.rows[TASKS[number - 1]]
            phases.append(train(made, task, tasks, orthogonal, earlier)[1])
            before = out
        say(f"seed {seed}: {method.text}: " + "; ".join(_line(phase) for phase in phases[1:]))
        yield Outcome(method=method.text, seed=seed, untrained=tasks.untrained, phases=phases)


def train(
    config: TrainConfig,
    task: str,
    tasks: Tasks,
    orthogonal: Orthogonal | None = None,
    earlier: Sequence[Batch] = (),
) -> tuple[Scores, Phase]:
    """Train as ``config`` says until ``task`` is learned, and export to ``output_dir``; ``earlier`` are rows of the
    task before it. Returns the scores of all tasks before it, and what came of it.
    """
    measure, plan = tasks.measure, tasks.plan
    source = open_source(config)
    program = build(config, device=torch.device("cpu"), source=source)
    data = open_data(config, source.tokenizer, vocabulary=source.config.vocab_size, world=1, write_cache=True)
    stepper = Stepper(program, make_optimizer(program.model, config), config)
    before = {t: measure(program, t) for t in TASKS}
    if orthogonal is not None:
        orthogonal.begin(program.model, earlier)
        orthogonal.hold(program.model)
    batches = rank_batches(data.steps, data.train, rank=0, pad_id=source.tokenizer.pad_token_id, varlen=False)
    taken, learned = 0, False
    for taken, (step, rows) in enumerate(batches, 1):
        stepper.step(rows, step.loss_tokens, lr=learning_rate(config, taken, len(data.steps)))
        if orthogonal is not None:
            orthogonal.hold(program.model)
        if taken % plan.every == 0 or taken == len(data.steps):
            learned = measure(program, task).loss <= plan.level
            if learned:
                break
    if orthogonal is not None:
        orthogonal.add(program.model)
    after = {t: measure(program, t) for t in TASKS}
    export(program.model, method_of(config), source, Path(config.output_dir), dtype=torch.float32)
    return before, Phase(task=task, steps=taken, learned=learned, after=after)


class Measure:
    """Scores of a program on the held-out samples of a task."""

    def __init__(self, configs: Mapping[str, TrainConfig]) -> None:
        self.rows: dict[str, list[Batch]] = {}
        """Held-out rows of each task."""
        for task, config in configs.items():
            source = open_source(config)
            data = open_data(config, source.tokenizer, vocabulary=source.config.vocab_size, world=1)
            self.rows[task] = list(_rows(data, data.steps, source.tokenizer.pad_token_id))

    @torch.no_grad()
    def __call__(self, program: Program, task: str) -> Score:
        logits: list[Tensor] = []
        head = program.model.get_output_embeddings()
        watching = head.register_forward_hook(lambda _module, _args, out: logits.append(out))
        loss, right, count = 0.0, 0, 0
        program.model.eval()
        try:
            for row in self.rows[task]:
                loss += program.model(**row).item()
                labels = row["labels"]
                asked = labels != IGNORE
                right += int((logits.pop().argmax(-1) == labels)[asked].sum())
                count += int(asked.sum())
        finally:
            watching.remove()
            program.model.train()
        return Score(loss=loss / count, accuracy=right / count)


def _rows(data: Data, steps: Sequence[Step], pad_id: int) -> list[Batch]:
    batches = rank_batches(steps, data.train, rank=0, pad_id=pad_id, varlen=False)
    return [row for _, rows in batches for row in rows]


def _mixed(files: Sequence[Path], path: Path) -> Path:
    """Samples of all files in turn, as many of each as the last has."""
    texts = [file.read_text(encoding="utf-8").splitlines() for file in files]
    lines = [text[i % len(text)] for i in range(len(texts[-1])) for text in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _line(phase: Phase) -> str:
    told = "" if phase.learned else " (not learned)"
    scores = " ".join(f"{task} {score.accuracy:.2f}" for task, score in phase.after.items())
    return f"{phase.task} {phase.steps} steps{told}, accuracy {scores}"
