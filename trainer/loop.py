"""A training run from configuration to export."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cftdiag.capture import counting
from cftdiag.monitor import Monitor
from trainer import checkpoint
from trainer.batch import collate, rank_batches
from trainer.cache import load_cache, save_cache
from trainer.compile import compile_settings
from trainer.config import TrainConfig
from trainer.data import Data, open_data
from trainer.distributed import Ranks, on_rank_zero, process_group
from trainer.export import export
from trainer.metrics import Metrics, flops_per_token, memory, peak_flops
from trainer.model import Source, dtype_of, model_class, open_source
from trainer.optim import learning_rate, make_optimizer
from trainer.plan import Plan, check_fingerprint, read_plan, warm
from trainer.preflight import preflight
from trainer.profiling import Profiling
from trainer.program import Program, build, lookup_backend
from trainer.recording import Recording
from trainer.step import Stepper
from trainer.trackers import Trackers, require


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What a finished run came to."""

    steps: int
    tokens: int
    loss: float
    """Of the last step; NaN when there was none."""
    output_dir: Path


def run(config: TrainConfig) -> RunResult:
    """Train as ``config`` says, on every rank of the process group (one is made from torchrun's environment, or for this process alone).

    Raises ``ValueError`` for a user's mistake and :class:`FloatingPointError` for a loss that is not finite; checkpoints written before stay.
    """
    out = Path(config.output_dir)
    require(config.tracker)
    plan = read_plan(config.compile_plan) if config.compile_plan else None
    if plan is not None:
        config = dataclasses.replace(config, **plan.options)
    with process_group(config.device) as ranks:
        # Rank 0 first: it writes what the others read (the demo's files).
        source = on_rank_zero(lambda: open_source(config)) or open_source(config)
        recording = Recording(rank=ranks.rank)
        with recording.recorder, compile_settings(config.scope, plan.torch if plan else {}) as settings:
            return _run(config, ranks, source, recording, settings, out, plan)


def _run(
    config: TrainConfig, ranks: Ranks, source: Source, recording: Recording, settings: dict[str, Any], out: Path, plan: Plan | None
) -> RunResult:
    notes = (on_rank_zero(lambda: preflight(config, world=ranks.world)) or []) if config.preflight else []
    data = open_data(config, source.tokenizer, vocabulary=source.config.vocab_size, world=ranks.world, report=notes.append)
    found = checkpoint.resolve(config.resume, out / "checkpoints") if config.resume else None
    state = checkpoint.read_state(found) if found else None
    with contextlib.ExitStack() as stack:
        metrics = stack.enter_context(Metrics(out / "metrics.jsonl", total=len(data.steps), enabled=ranks.rank == 0, append=state is not None))
        for note in notes:
            metrics.say(note)
        names = config.tracker if ranks.rank == 0 else ()
        trackers = stack.enter_context(Trackers(names, out, config.to_dict(), say=metrics.say, resumed=state is not None))
        profiling = stack.enter_context(Profiling(config.profile_steps, out / "profile", rank=ranks.rank, say=metrics.say))
        cached = load_cache(config)
        started = time.perf_counter()
        program = build(
            config,
            device=ranks.device,
            weights=state is None,
            source=source,
            ranks=state.ranks if state else None,
            wrap_backend=lambda name: counting(lookup_backend(name), recording.recorder),
            calibration=lambda: _calibration(data),
        )
        recording.watch(program.model, program.blocks, compiled="block" in program.compiler.graphs)
        profiling.name_regions(program.blocks, program.compiler)
        optimizer = make_optimizer(program.model, config)
        if found:
            checkpoint.load(found, program.model, optimizer)
        for line in describe(program, data, config, time.perf_counter() - started, cached):
            metrics.say(line)
        noted = {"trainer": config.to_dict(), "torch": settings, "unsafe": list(plan.unsafe) if plan else []}
        with Monitor(program.model, run_dir=out / "run", quiet=True, plan=config.compile_plan, settings=noted, sinks=trackers.sinks()):
            if plan is not None:
                check_fingerprint(plan, config, attn=source.attn, dtype=program.dtype, world=ranks.world)
                warm(program, plan)
                metrics.say(f"warmed {len(plan.lengths)} regimes in {recording.step()['compile_seconds']:.1f} s of compiling")
            return _Trainer(config, program, data, recording, metrics, optimizer, out, ranks, trackers, profiling).train(state)


class _Trainer:
    def __init__(
        self,
        config: TrainConfig,
        program: Program,
        data: Data,
        recording: Recording,
        metrics: Metrics,
        optimizer: torch.optim.Optimizer,
        out: Path,
        ranks: Ranks,
        trackers: Trackers,
        profiling: Profiling,
    ) -> None:
        self.trackers, self.profiling = trackers, profiling
        self.config, self.program, self.data, self.recording, self.metrics = config, program, data, recording, metrics
        self.optimizer, self.out, self.ranks = optimizer, out, ranks
        self.stepper = Stepper(program, optimizer, config)
        self.flops = flops_per_token(program.model)
        self.peak = peak_flops(ranks.device)

    def train(self, state: checkpoint.State | None) -> RunResult:
        step, tokens = (state.step, state.tokens) if state else (0, 0)
        loss = math.nan
        steps = self.data.steps[step:]
        for plan, batches in self._batches(steps, self.data.train):
            step += 1
            tokens += plan.tokens
            started = time.perf_counter()
            self.recording.recorder.step = step
            lr = learning_rate(self.config, step, len(self.data.steps))
            measure_leak = bool(self.config.osft_leak_every) and (step % self.config.osft_leak_every == 0 or step == len(self.data.steps))
            with self.profiling.step(step):
                figures = self.stepper.step(batches, plan.loss_tokens, lr=lr, leak=measure_leak)
            seconds = time.perf_counter() - started
            loss = figures["loss"]
            last_of_epoch = step == len(self.data.steps) or self.data.steps[step].epoch != plan.epoch
            if not math.isfinite(loss):
                lines = sorted(self.data.train.samples[i].line for micro in plan.rows for row in micro for i in row.samples)
                raise FloatingPointError(f"step {step}: loss is {loss}; the batch is lines {lines} of the data. Checkpoints written before are kept")
            record = {
                "step": step, "epoch": plan.epoch, "lr": lr, **figures,
                "samples": plan.samples, "tokens": plan.tokens, "loss_tokens": plan.loss_tokens, "total_tokens": tokens,
                "lengths": [[row.length for row in micro] for micro in plan.rows],
                "seconds": round(seconds, 4), "tokens_per_second": round(plan.tokens / seconds, 2), "mfu": self._mfu(plan.tokens, seconds),
                **self.recording.step(),
            }  # fmt: skip
            if step == (state.step if state else 0) + 1:
                self._after_first_step(record)
            if self.data.validation is not None and (step % self.config.validate_every == 0 if self.config.validate_every else last_of_epoch):
                record["val_loss"] = self.validate()
            self.metrics.write(record)
            self.trackers.write(record)
            if self.config.checkpoint_every and step % self.config.checkpoint_every == 0 and step < len(self.data.steps):
                self.save(step, tokens)
        return self._finish(step, tokens, loss, trained=bool(steps))

    def _batches(self, steps: Any, samples: Any) -> Any:
        pad = getattr(self.program.source.tokenizer, "pad_token_id", None) or 0
        return rank_batches(
            steps, samples, rank=self.ranks.rank, pad_id=pad, varlen=self.program.varlen,
            workers=self.config.num_workers, pin=self.ranks.device.type == "cuda",
        )  # fmt: skip

    def _mfu(self, tokens: int, seconds: float) -> float | None:
        return None if self.peak is None else round(self.flops * tokens / seconds / (self.peak * self.ranks.world), 4)

    def _after_first_step(self, record: dict[str, Any]) -> None:
        self.program.compiler.verify()
        if "block" in self.program.compiler.graphs and (eager := self.recording.eager_blocks(self.program.blocks)):
            raise ValueError(f"{len(eager)} blocks ran no compiled graph, the first is {eager[0]}; run `cftdiag check`")
        if used := memory(self.ranks.device):
            record["memory"] = used
            self.metrics.say(f"memory: peak {used['peak'] / 2**30:.1f} GiB of {used['total'] / 2**30:.1f} GiB")
        save_cache(self.config, say=self.metrics.say)

    def validate(self) -> float:
        """Mean loss per loss token over the validation set. Collective."""
        total, count = torch.zeros((), dtype=torch.float64, device=self.ranks.device), 0
        self.program.model.eval()
        for plan, batches in self._batches(self.data.validation_steps, self.data.validation):
            total += self.stepper.evaluate(batches)
            count += plan.loss_tokens
        self.program.model.train()
        dist.all_reduce(total)
        return total.item() / count

    def save(self, step: int, tokens: int) -> None:
        """Write a checkpoint. Collective."""
        ranks = {t.name: t.high for t in self.program.targets}
        state = checkpoint.State(step=step, tokens=tokens, ranks=ranks, config=self.config.to_dict())
        path = checkpoint.save(self.out / "checkpoints", self.program.model, self.optimizer, state, keep=self.config.keep_checkpoints)
        self.metrics.say(f"checkpoint {path}")

    def _finish(self, step: int, tokens: int, loss: float, *, trained: bool) -> RunResult:
        if trained:
            self.save(step, tokens)
        if self.config.export:
            dtype = dtype_of(self.config.save_dtype) if self.config.save_dtype else self.program.source.dtype
            export(self.program.model, self.program.source, self.program.targets, self.out / "hf", dtype=dtype)
            self.metrics.say(f"exported {self.out / 'hf'}")
        return RunResult(steps=step, tokens=tokens, loss=loss, output_dir=self.out)


def _calibration(data: Data) -> list[dict[str, Any]]:
    """Up to four rows of the first steps, for the layer importance of adaptive ranks."""
    rows = [row for step in data.steps[:4] for micro in step.rows[:1] for row in micro if row.samples]
    return [collate(row, data.train, pad_id=0, varlen=False) for row in rows[:4]]


def describe(program: Program, data: Data, config: TrainConfig, seconds: float, cached: str | None) -> list[str]:
    """The lines printed before training: what is trained, how it is wrapped, what is compiled."""
    trained = sum(p.numel() for p in program.model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in program.model.parameters())
    lengths = [n for step in data.lengths for micro in step for n in micro]
    lines = [
        f"{model_class(program.source.config).__name__}: {len(program.blocks)} blocks, {total:,} parameters, {trained:,} trained ({config.method})",
        f"attention {program.source.attn} ({program.source.attn_reason}), dtype {program.dtype}, ac {config.ac}, "
        f"mesh {tuple(program.mesh.shape)} {program.device.type}, built in {seconds:.1f} s",
        f"compile scope {config.scope}" + (f", backend {config.backend}, dynamic {config.dynamic}" if config.scope != "none" else ""),
        f"{len(data.train):,} samples, {len(data.steps):,} steps, rows of {min(lengths)} to {max(lengths)} tokens",
    ]
    if cached:
        lines.append(cached)
    return lines + target_table(program)


def target_table(program: Program) -> list[str]:
    """One line per shape and rank of the OSFT targets."""
    groups: dict[tuple[str, int, int, int, str], int] = {}
    for t in program.targets:
        key = (t.name.rpartition(".")[2], t.rows, t.columns, t.high, t.kind)
        groups[key] = groups.get(key, 0) + 1
    return [
        f"target {name}: {count} x {rows} x {columns}, {high} directions frozen, {min(rows, columns) - high} trained ({kind})"
        for (name, rows, columns, high, kind), count in groups.items()
    ]
