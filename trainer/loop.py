"""A training run from configuration to export."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cftdiag.capture import counting
from cftdiag.monitor import Monitor
from cftdiag.monitor.trackers import require
from cftdiag.recipe.compile import compile_settings
from cftdiag.recipe.packing import Step
from trainer import nonfinite, resume
from trainer.batch import collate
from trainer.cache import load_cache, save_cache
from trainer.checkpoints import rng
from trainer.checkpoints.layout import Best, State
from trainer.checkpoints.remote import require_local
from trainer.checkpoints.saver import Saver
from trainer.checkpoints.tensors import RankState, collect, load
from trainer.config import TrainConfig, profile_range
from trainer.data import Data, open_data
from trainer.describe import describe
from trainer.deterministic import deterministic
from trainer.distributed import Ranks, anyone, on_rank_zero, process_group, require_writable, with_tensor
from trainer.eager_sample import EagerSample
from trainer.export import export, write_assets
from trainer.faults import memory_of, writing
from trainer.lock import Lock
from trainer.methods import method_of
from trainer.metrics import Metrics, flops_per_token, memory, peak_flops
from trainer.model import Source, dtype_of, open_source, require_device
from trainer.objectives import objective_of
from trainer.optim import learning_rate, make_optimizer
from trainer.plan import CompilePlan, check_fingerprint, read_plan, warm
from trainer.positions import POSITIONS, Positions
from trainer.preflight import preflight
from trainer.profiling import Profiling
from trainer.program import Program, build, lookup_backend
from trainer.recording import Recording
from trainer.signals import STOPPED, StopSignals
from trainer.step import Stepper
from trainer.trackers import Trackers


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What a finished run came to."""

    steps: int
    tokens: int
    loss: float
    """Of the last step that was taken; NaN when there was none."""
    output_dir: Path
    stopped: bool = False
    """A signal ended it early, with a checkpoint."""


def run(config: TrainConfig, signals: StopSignals | None = None) -> RunResult:
    """Train as ``config`` says, on every rank of the process group (one is made from torchrun's environment,
    or for this process alone). ``signals`` are those of a caller who listens already.

    SIGTERM and SIGUSR1 end it after the step, with a checkpoint, before the first one at once. Raises ``ValueError`` for a user's mistake
    and for a last checkpoint that could not be written, :class:`FloatingPointError` for a loss, a gradient
    or a weight that is not finite; checkpoints written before stay.
    """
    require_local(config.output_dir, "output-dir")
    out = Path(config.output_dir)
    require(config.tracker)
    with contextlib.ExitStack() as stack:
        listening = signals or stack.enter_context(StopSignals())
        result = listening.starting(out, lambda: _start(config, out, listening))
    return result or RunResult(steps=listening.step, tokens=0, loss=math.nan, output_dir=out, stopped=True)


def _start(config: TrainConfig, out: Path, signals: StopSignals) -> RunResult:
    with (
        deterministic(config.deterministic),
        process_group(config.device, timeout=config.collective_timeout) as ranks,
        contextlib.ExitStack() as stack,
    ):
        ranks = with_tensor(ranks, config.tensor_parallel)
        on_rank_zero(lambda: require_writable(out))
        notes = config.without_effect()
        lock = on_rank_zero(lambda: stack.enter_context(Lock(out, say=notes.append)))
        signals.ours = True
        on_rank_zero(lambda: shutil.rmtree(out / POSITIONS, ignore_errors=True))  # of an earlier run
        positions = stack.enter_context(Positions(out / POSITIONS, rank=ranks.rank, world=ranks.world))
        stack.enter_context(positions.named())
        positions.at(0, "reading the checkpoint")
        found = resume.find(config, notes.append)
        config = dataclasses.replace(config, compile_plan=resume.plan_of(found, config))
        plan = read_plan(config.compile_plan) if config.compile_plan else None
        if plan is not None:
            config = dataclasses.replace(config, **plan.options)
        positions.at(0, "opening the model")
        # Rank 0 first: it writes what the others read (the demo's files).
        source = on_rank_zero(lambda: open_source(config)) or open_source(config)
        require_device(source.attn, ranks.device.type)
        recording = Recording(rank=ranks.rank)
        with recording.recorder, compile_settings(config.scope, plan.torch if plan else {}) as settings:
            return _run(
                config, ranks, source, recording, settings, out, plan, found, notes, lock, signals, positions
            )


def _run(
    config: TrainConfig,
    ranks: Ranks,
    source: Source,
    recording: Recording,
    settings: dict[str, Any],
    out: Path,
    plan: CompilePlan | None,
    found: Path | None,
    notes: list[str],
    lock: Lock | None,
    signals: StopSignals,
    positions: Positions,
) -> RunResult:
    positions.at(0, "reading the data")
    data = open_data(
        config,
        source.tokenizer,
        vocabulary=source.config.vocab_size,
        world=ranks.data_world,
        report=notes.append,
        write_cache=True,
    )
    if config.preflight:
        positions.at(0, "the preflight")
        notes += (
            on_rank_zero(lambda: preflight(config, world=ranks.world, device=ranks.device, settings=settings))
            or []
        )
        recording.step()  # what the preflight compiled is not the run's
    state = resume.read(found)
    if state is not None:
        signals.step = state.step
        notes += [
            *resume.check(state, config, data, world=ranks.world),
            f"continues {found} after step {state.step} of {len(data.steps)}",
        ]
    elif config.resume is not None:
        notes.append(f"no checkpoint in {out / 'checkpoints'} to continue: starts at step 1")
    notes += config.without_effect_in(len(data.steps))
    if config.profile_steps is not None and (begin := profile_range(config.profile_steps).start) > len(
        data.steps
    ):
        raise ValueError(
            f"profile-steps begins at step {begin}, this run ends at {len(data.steps)}; give earlier steps"
        )
    with contextlib.ExitStack() as stack:
        metrics = stack.enter_context(
            Metrics(
                out / "metrics.jsonl",
                total=len(data.steps),
                enabled=ranks.rank == 0,
                append=state is not None,
            )
        )
        for note in notes:
            metrics.say(note)
        names = config.tracker if ranks.rank == 0 else ()
        trackers = stack.enter_context(
            Trackers(names, out, config.to_dict(), say=metrics.say, resumed=state is not None)
        )
        profiling = stack.enter_context(
            Profiling(config.profile_steps, out / "profile", rank=ranks.rank, say=metrics.say)
        )
        positions.at(0, "building the model")
        cached = load_cache(config)
        started = time.perf_counter()
        with memory_of(lambda: f"rank {ranks.rank}, the model", _FEWER):
            program = build(
                config,
                device=ranks.device,
                weights=state is None or objective_of(config).needs_the_start,
                source=source,
                ranks=state.ranks if state else None,
                wrap_backend=lambda name: counting(lookup_backend(name), recording.recorder),
                calibration=lambda: _calibration(data),
            )
        program.objective.begin(program)
        if plan is not None:
            device = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "cpu"
            check_fingerprint(
                plan,
                config,
                model_config=source.config,
                attn=source.attn,
                dtype=program.dtype,
                device=device,
                world=ranks.world,
            )
        recording.watch(program.model, program.blocks, compiled="block" in program.compiler.graphs)
        profiling.name_calls(program.calls)
        with memory_of(lambda: f"rank {ranks.rank}, the optimizer's states", _FEWER):
            optimizer = make_optimizer(program.model, config)
        positions.at(0, "loading the checkpoint" if found else "making ready")
        own = load(found, program.model, optimizer) if found else []
        assets = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        on_rank_zero(lambda: write_assets(source, config.compile_plan, assets))
        saver = stack.enter_context(
            Saver(
                out / "checkpoints",
                assets,
                device=ranks.device,
                keep=config.keep_checkpoints,
                say=metrics.say,
            )
        )
        for line in resume.make_way(found, state, out) + describe(
            program, data, config, time.perf_counter() - started, cached
        ):
            metrics.say(line)
        noted = {"trainer": config.to_dict(), "torch": settings, "unsafe": list(plan.unsafe) if plan else []}
        with Monitor(
            program.model,
            run_dir=out / "run",
            quiet=True,
            plan=config.compile_plan,
            settings=noted,
            sinks=trackers.sinks(),
        ):
            if plan is not None:
                positions.at(0, "warming the plan")
                warm(program, plan, validates=data.validation is not None)
                metrics.say(
                    f"warmed {len(plan.rows)} regimes in {recording.step()['compile_seconds']:.1f} s of compiling"
                )
            trainer = _Trainer(
                config, program, data, recording, metrics, optimizer, out, ranks, trackers, profiling, saver
            )
            positions.at(0, "the reference and earlier compiles")
            if found is not None:
                program.objective.read(found, data)
            else:
                trainer.look_ahead()
            on_rank_zero(lambda: program.objective.write(assets))
            if again := trainer.compile_again([rank.compiled for rank in own]):
                metrics.say(
                    f"compiled as before from {again} batches in {recording.step()['compile_seconds']:.1f} s"
                )
            rng.seed(config.seed, ranks.data_rank)  # dropout is alike on ranks that have the same rows
            if ranks.rank < len(own):
                rng.restore(own[ranks.rank].rng, ranks.device)
                program.objective.restore(own[ranks.rank].objective)
            signals.hold()
            signals.begin(anyone(signals.requested(), ranks.device))
            trainer.train(state, signals, lock, positions)
            # Still heard: a scheduler and torchrun both pass a signal on, and the second must not end the
            # checkpoint of the first.
            result = trainer.finish()
            if result.stopped and ranks.rank == 0:
                with writing(out / STOPPED):
                    signals.mark(out, result.steps)
            return result


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
        saver: Saver,
    ) -> None:
        self.trackers, self.profiling, self.saver = trackers, profiling, saver
        self.config, self.program, self.data, self.recording, self.metrics = (
            config,
            program,
            data,
            recording,
            metrics,
        )
        self.optimizer, self.out, self.ranks = optimizer, out, ranks
        self.stepper = Stepper(program, optimizer, config)
        self.compiles = resume.Compiles(lambda: sum(program.compiler.graphs.values()))
        self.flops = flops_per_token(program.model)
        self.peak = peak_flops(ranks.device)
        self.best: Best | None = None
        self.step, self.tokens, self.loss, self.stopped = 0, 0, math.nan, False
        self.skipped = 0
        self.ahead = program.objective.steps_ahead(data, ranks.data_world)
        self.eager = EagerSample(0, first=1, compiled=False, say=metrics.say)

    def look_ahead(self) -> None:
        """Run what the objective must know of the policy before its first step. Collective."""
        if not self.ahead:
            return
        objective, started = self.program.objective, time.perf_counter()
        self.program.model.eval()
        # Eager, so that it leaves no graphs without gradients beside those of training; but flex attention is
        # a fused kernel only where it is compiled.
        eager = self.program.source.attn != "flex_attention"
        with torch.compiler.set_stance("force_eager") if eager else contextlib.nullcontext():
            for number, (samples, step) in enumerate(self.ahead):
                for plan, batches in self._batches([step], samples):
                    rows = [micro[self.ranks.data_rank] for micro in plan.rows]
                    objective.note_ahead(samples, rows, batches, self.stepper.values(batches))
                self.compiles.note(0, number)
        self.program.model.train()
        objective.share_ahead(self.ranks.device, same_rows=self.ranks.tensor)
        compiled = self.recording.step()["compile_seconds"]
        self.metrics.say(
            f"objective {self.config.objective}: log-probabilities of the reference in {time.perf_counter() - started:.1f} s"
            + (f", {compiled:.1f} s of compiling" if compiled else "")
        )

    def compile_again(self, histories: list[list[list[int]]]) -> int:
        """Compile what a resumed run had compiled, in the same order; returns from how many batches.
        Collective.
        """
        return self.compiles.replay(
            histories,
            made=lambda lengths: self.program.objective.batches_of(
                lengths, pad_id=self._pad_id, varlen=self.program.varlen
            ),
            ahead=lambda number: self._batches([self.ahead[number][1]], self.ahead[number][0]),
            train=lambda step: self._batches(self.data.steps[step - 1 : step], self.data.train),
            validate=lambda batch: self._batches(
                self.data.validation_steps[batch : batch + 1], self.data.validation
            ),
            stepper=self.stepper,
            program=self.program,
        )

    def train(
        self, state: State | None, signals: StopSignals, lock: Lock | None, positions: Positions
    ) -> None:
        """Take the steps that are left, until the last or a signal; rank 0 has the lock of the output
        directory.
        """
        if state is not None:
            self.step, self.tokens = state.step, state.tokens
            if state.validation == resume.validation_digest(self.data):
                self.best = state.best
        self.stepper.stop = signals.requested
        first, total = self.step + 1, len(self.data.steps)
        positions.at(first, "reading its rows")
        self.eager = EagerSample(
            self.config.measure_eager, first=first, compiled=self.config.scope != "none", say=self.metrics.say
        )
        waiting, kept = time.perf_counter(), 0.0
        for plan, batches in self._batches(self.data.steps[self.step :], self.data.train):
            if lock is not None:
                lock.require()
            step = self.step = self.step + 1
            self.tokens += plan.tokens
            started = time.perf_counter()
            waited = started - waiting
            self.recording.recorder.step = step
            positions.at(step, "the step")
            lr = learning_rate(self.config, step, total)
            measure_leak = bool(self.config.osft_leak_every) and (
                step % self.config.osft_leak_every == 0 or step == total
            )
            with (
                self.eager.stance(step),
                self.profiling.step(step),
                memory_of(partial(_rows, step, plan, self.ranks.data_rank), _LESS),
            ):
                figures = self.stepper.step(
                    batches, self.program.objective.divisor(plan), lr=lr, leak=measure_leak
                )
            seconds = time.perf_counter() - started
            self.stopped = figures.pop("stop")
            self.compiles.note(step, lengths=self._lengths(plan))
            last_of_epoch = step == total or self.data.steps[step].epoch != plan.epoch
            if (bad := figures.pop("nonfinite")) is not None:
                self._skip(plan, figures, bad)
            else:
                self.loss = figures["loss"]
            record = {
                "step": step, "epoch": plan.epoch, "lr": lr, **figures,
                "samples": plan.samples, "tokens": plan.tokens, "loss_tokens": plan.loss_tokens, "total_tokens": self.tokens,
                "lengths": [[row.length for row in micro] for micro in plan.rows],
                "seconds": round(seconds, 4), "data_seconds": round(waited, 4), "checkpoint_seconds": round(kept, 4),
                "tokens_per_second": round(plan.tokens / (seconds + waited), 2), "mfu": self._mfu(plan.tokens, seconds + waited),
                **self.program.objective.take_figures(),
                **({"eager": True} if self.eager.is_eager(step) else {}),
                **self.recording.step(),
            }  # fmt: skip
            if step == first:
                self._after_first_step(record)
            if self.data.validation is not None and (
                step % self.config.validate_every == 0 if self.config.validate_every else last_of_epoch
            ):
                positions.at(step, "validation")
                with memory_of(
                    lambda: f"rank {self.ranks.rank}, the validation after step {self.step}", _LESS
                ):
                    began = time.perf_counter()
                    record |= self.validate()
                    record["validation_seconds"] = round(time.perf_counter() - began, 4)
                    # its first batch compiles graphs without gradients, which are no step's
                    compiled = self.recording.step()
                    record["validation_compile_seconds"] = compiled["compile_seconds"]
                    record["validation_graphs"] = compiled["graphs"]
                found = self.program.objective.badness(record)
                improved = math.isfinite(found) and (self.best is None or found < self.best.loss)
            else:
                improved = False
            self.metrics.write(record)
            self.trackers.write(record)
            self.eager.note(record)
            if improved:
                self.best = Best(step=step, loss=found)
            due = {
                "step": bool(self.config.checkpoint_every) and step % self.config.checkpoint_every == 0,
                "epoch": self.config.checkpoint_epochs and last_of_epoch,
                "best": self.config.checkpoint_best and improved,
                "signal": self.stopped,
                "end": step == total,
            }
            began = time.perf_counter()
            if kinds := tuple(kind for kind, is_due in due.items() if is_due):
                positions.at(step, "a checkpoint")
                self.save(kinds)
            kept = time.perf_counter() - began
            self.saver.poll()
            if self.stopped:
                who = signals.received or "a signal on another rank"
                self.metrics.say(f"{who}: stopped after step {step} of {total}; continue with --resume auto")
                break
            positions.at(step + 1, "reading its rows")
            waiting = time.perf_counter()

    def _skip(self, plan: Step, figures: dict[str, Any], bad: nonfinite.Nonfinite) -> None:
        """A step that was not taken: tell it, or end the run when it is one too many. JSON has no NaN: the
        figures become None.
        """
        text = nonfinite.describe(
            self.step,
            plan,
            self.program.objective.current(self.data.train).samples,
            figures["loss"],
            figures["grad_norm"],
            bad,
        )
        self.skipped += 1
        if self.skipped > self.config.skip_nonfinite:
            raise FloatingPointError(
                f"{text}. The step was not taken and nothing of it is saved; look at these lines, lower the learning "
                "rate, or leave such steps out with --skip-nonfinite N"
            )
        self.metrics.say(f"skipped {self.skipped} of at most {self.config.skip_nonfinite}: {text}")
        figures |= {"skipped": True, "loss": None, "grad_norm": None, "grad_norm_raw": None}
        figures |= dict.fromkeys(self.program.objective.loss.figures)

    @property
    def _pad_id(self) -> int:
        return getattr(self.program.source.tokenizer, "pad_token_id", None) or 0

    def _lengths(self, plan: Step) -> list[int]:
        """Of this rank's rows, where nothing but the run itself knows them."""
        made = self.program.objective.makes_rows
        return [micro[self.ranks.data_rank].length for micro in plan.rows] if made else []

    def _batches(self, steps: Any, samples: Any) -> Any:
        return self.program.objective.batches(
            steps, samples, rank=self.ranks.data_rank, pad_id=self._pad_id, varlen=self.program.varlen,
            workers=self.config.num_workers, pin=self.ranks.device.type == "cuda",
        )  # fmt: skip

    def _mfu(self, tokens: int, seconds: float) -> float | None:
        return (
            None
            if self.peak is None
            else round(self.flops * tokens / seconds / (self.peak * self.ranks.world), 4)
        )

    def _after_first_step(self, record: dict[str, Any]) -> None:
        self.program.compiler.verify()
        if "block" in self.program.compiler.graphs and (
            eager := self.recording.eager_blocks(self.program.blocks)
        ):
            raise ValueError(
                f"{len(eager)} blocks ran no compiled graph, the first is {eager[0]}; run `cftdiag check`"
            )
        if used := memory(self.ranks.device):
            record["memory"] = used
            self.metrics.say(
                f"memory: peak {used['peak'] / 2**30:.1f} GiB of {used['total'] / 2**30:.1f} GiB"
            )
        save_cache(self.config, say=self.metrics.say)

    def validate(self) -> dict[str, float]:
        """``val_loss`` and the objective's figures, means over the validation set. Collective."""
        objective = self.program.objective
        names = [f"val_{name}" for name in ("loss", *objective.loss.figures)]
        total, count = torch.zeros(len(names), dtype=torch.float64, device=self.ranks.device), 0
        self.program.model.eval()
        devices = [self.ranks.device] if self.ranks.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.config.seed)  # what is sampled is the same draw at every validation
            for number, (plan, batches) in enumerate(
                self._batches(self.data.validation_steps, self.data.validation)
            ):
                total += self.stepper.evaluate(batches)
                self.compiles.note(self.step, number, self._lengths(plan))
                count += objective.divisor(plan)
        self.program.model.train()
        dist.all_reduce(total)
        total /= self.ranks.tensor  # which count the same rows
        own = {f"val_{name}": value for name, value in objective.take_figures().items()}
        return {**dict(zip(names, (total / count).tolist(), strict=True)), **own}

    def save(self, kinds: tuple[str, ...]) -> None:
        """Begin to write a checkpoint of this moment. Collective. Raises :class:`FloatingPointError` for weights
        or optimizer states that are not finite: a run could never continue from them.
        """
        tensors = collect(self.program.model, self.optimizer)
        if (name := nonfinite.first_bad(tensors)) is not None:
            raise FloatingPointError(
                f"step {self.step}: {name} is not finite, so that no checkpoint of it is written; earlier ones are kept. "
                "Lower the learning rate, or raise --eps"
            )
        state = State(
            step=self.step, tokens=self.tokens, world=self.ranks.world, ranks={t.name: t.high for t in self.program.targets},
            data=self.data.train.digest, kinds=kinds, best=self.best, config=self.config.to_dict(),
            validation=resume.validation_digest(self.data),
        )  # fmt: skip
        own = RankState(
            rng=rng.capture(self.ranks.device),
            compiled=self.compiles.history,
            objective=self.program.objective.state(),
        )
        self.saver.save(tensors, own, state)

    def finish(self) -> RunResult:
        """Wait for the last checkpoint; export, unless a signal asked to be quick. Raises ``ValueError`` when
        that checkpoint failed. Collective.
        """
        self.saver.wait()
        if self.config.export and not self.stopped:
            dtype = dtype_of(self.config.save_dtype) if self.config.save_dtype else self.program.source.dtype
            made = export(
                self.program.model,
                method_of(self.config),
                self.program.source,
                self.out / "hf",
                dtype=dtype,
            )
            self.metrics.say(f"exported {', '.join(map(str, made))}")
        on_rank_zero(self.saver.require)
        return RunResult(
            steps=self.step, tokens=self.tokens, loss=self.loss, output_dir=self.out, stopped=self.stopped
        )


_FEWER = "give more ranks, --train-dtype bfloat16, or --lora"
_LESS = (
    "give a lower --max-tokens-per-gpu, --ac full, more --loss-chunks, --dtype bfloat16, or more ranks; "
    "--lora trains fewer parameters"
)


def _rows(step: int, plan: Step, rank: int) -> str:
    lengths = [micro[rank].length for micro in plan.rows]
    return f"rank {rank}, step {step}, {len(lengths)} rows of up to {max(lengths)} tokens"


def _calibration(data: Data) -> list[dict[str, Any]]:
    """Up to four rows of the first steps, for the layer importance of adaptive ranks."""
    rows = [row for step in data.steps[:4] for micro in step.rows[:1] for row in micro if row.samples]
    return [collate(row, data.train, pad_id=0, varlen=False) for row in rows[:4]]
