"""One pass, run in a child: build the subject, compile its blocks, run its steps, and tell what torch did.

Modes: ``fullgraph`` compiles with ``fullgraph=True`` and keeps one failing block from hiding the next;
``collect`` compiles as the subject asks but without fullgraph, and so meets every graph break; ``auto`` is
the one of these two that the subject asks for; ``eager`` compiles nothing and tells whether a failure is the
model's own; ``reference`` and ``numerics`` run the first steps eagerly and compiled, and compare; ``sweep``
asks cached guards about every shape of the user's data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
import os
import resource
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from cftdiag import fastforward
from cftdiag.capture import Recorder, counting
from cftdiag.capture.capture_ends import differentiated_again
from cftdiag.capture.compile_requests import CompileRequests
from cftdiag.capture.entry_guards import entry_guards
from cftdiag.diagnose.engine.probes import Numerics, Worst
from cftdiag.error_text import one_line, shorten
from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.events import Event, Frame
from cftdiag.forecast.lengths import Shape
from cftdiag.options import CheckOptions
from cftdiag.passes import numerics
from cftdiag.passes.compiled_calls import Watch, compiles_seen, is_checkpoint_failure
from cftdiag.passes.messages import (
    COMPARED_STEPS,
    Assumption,
    Forecast,
    NeverRan,
    Observed,
    PassTask,
    Program,
    ProgramBlock,
    ProgressEvent,
    Raised,
    Refused,
    Result,
    Send,
    StepDone,
    StepShape,
    SweepTask,
    Unfit,
)
from cftdiag.passes.prepare import batch_of_shape, blocks_of, prepare
from cftdiag.passes.settings import process_kept
from cftdiag.recipe import (
    ROOT,
    DepthNotReached,
    apply_recipe,
    block_groups,
    fake_mesh,
)
from cftdiag.recipe.stacks import stacks
from cftdiag.subject import Subject
from cftdiag.torch_private import dynamo
from cftdiag.torch_private.dynamo import is_compile_failure
from cftdiag.torch_private.wrappers import strip
from cftdiag.torch_settings import SOME_RELEASES, torch_config

SEED = 0
#: Scopes that compile the blocks one by one.
BY_BLOCK = ("block", "block+loss")
#: Errors of a full disk or a closed pipe, which say nothing about the model.
_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EPIPE)


def run_task(task: PassTask, send: Send, live: Subject | None = None) -> None:
    """Run one pass and ``send`` its messages; never raises for what the user's model does."""
    options = task.options
    try:
        with process_kept(options.patch.env), torch_config(options.patch.torch_config):
            off = dynamo.switched_off()
            if off is not None and options.compile.scope != "none":
                raise InputError(f"torch.compile is switched off by {off}; unset it to check what compiles")
            _Pass(task, options, send, live).run()
    except InputError as error:
        send(Refused(message=str(error)))
    except (EnvironmentUnfit, DepthNotReached) as error:
        send(Unfit(message=str(error)))
    except OSError as error:
        if error.errno not in _MACHINE:
            raise
        send(
            Unfit(
                message=f"the pass could not use this machine ({one_line(error)}); free disk space or set TMPDIR"
            )
        )


class _Pass:
    def __init__(self, task: PassTask, options: CheckOptions, send: Send, live: Subject | None) -> None:
        self.task, self.mode, self.send = task, task.mode, send
        self.step_index = 0
        self.progress("build")
        started = time.monotonic()
        self.prepared = prepare(task.origin, options, live)
        self.subject, self.options = self.prepared.subject, self.prepared.options
        if self.mode == "auto":
            # the way the subject itself compiles goes first: its recompiles are the ones that training would
            # meet
            whole = self.prepared.compile_kwargs.get("fullgraph") and self.subject.wrap is None
            self.mode = "fullgraph" if whole else "collect"
        self.model_class = type(self.subject.model).__name__  # before FSDP2 gives it a class of its own
        self.build_seconds = time.monotonic() - started
        self.watch = Watch(isolate=self.mode == "fullgraph", on_call=self.called)
        self.watch.marks = {
            "mark_dynamic": options.patch.mark_dynamic,
            "mark_unbacked": options.patch.mark_unbacked,
        }
        self.kinds: dict[str, str] = {}
        self.losses: list[Any] = []
        self.trained: set[str] = set()
        self.trace = numerics.Trace()
        self.untouched: list[str] = []
        """Stacks taken by default that the training step never calls."""
        self.skip: Any = fastforward.SkipMode if self.prepared.weightless else contextlib.nullcontext

    def progress(self, phase: str, *, step: int = 0, of: int = 0, length: int | None = None) -> None:
        self.send(ProgressEvent(phase=phase, mode=self.mode, step=step, of=of, length=length))

    def run(self) -> None:
        fastforward.reset()
        self.requests = CompileRequests()
        recorder = Recorder(on_event=self.observe)
        try:
            with contextlib.ExitStack() as stack:
                for context in self.contexts(recorder):
                    stack.enter_context(context)
                with self.skip():
                    if (
                        self.options.patch.eager_warmup
                        and self.subject.batches
                        and self.prepared.step is not None
                    ):
                        self.prepared.step(self.subject.model, dict(self.subject.batches[0]))
                    self.compile_or_refuse(recorder)
                recorder.watch(self.subject.model, [fqn for fqn, _ in self.blocks])
                self.limit = dynamo.recompile_limit()
                self.describe()
                if self.task.sweep is not None:
                    self.sweep(self.task.sweep, recorder)
                else:
                    self.steps(recorder)
                self.leave_out_untouched_stacks()
                self.result(recorder)
        finally:
            self.watch.undo()

    def called(self, fqn: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self.mode in ("reference", "numerics"):
            numerics.record_inputs(self.trace, fqn, args, kwargs)

    def observe(self, event: Event) -> None:
        self.requests.see(event)
        self.send(Observed(event=event))

    def contexts(self, recorder: Recorder) -> Iterator[Any]:
        yield recorder
        yield self.requests
        yield fastforward.routing_policy(self.options.compile.routing)
        yield _warnings_kept_quiet()
        if self.subject.wrap is not None or self.prepared.step is not None:
            yield compiles_seen(self.subject.model, self.watch, recorder, self.prepared.changes)
        if self.mode in ("reference", "numerics"):
            yield numerics.alike_randomness()
        if self.mode in ("reference", "eager"):
            yield torch.compiler.set_stance("force_eager")

    # ---- compiling ----

    def compile_or_refuse(self, recorder: Recorder) -> None:
        """Compile; what a subject's own ``wrap`` or compile arguments get wrong is the user's to mend."""
        try:
            self.compile_all(recorder)
        except (InputError, EnvironmentUnfit, DepthNotReached):
            raise
        except Exception as error:
            if self.prepared.step is None:
                raise
            doing = (
                "wrap()"
                if self.subject.wrap is not None
                else f"compiling the blocks with {self.prepared.compile_kwargs}"
            )
            raise InputError(f"{doing} raised {one_line(error)}") from error

    def compile_all(self, recorder: Recorder) -> None:
        model, subject, options = self.subject.model, self.subject, self.options
        self.model_to_run, self.program, self.depth = model, None, "run"
        own = (subject.blocks,) if isinstance(subject.blocks, str) else tuple(subject.blocks or ())
        wanted = own or options.subject.blocks
        self.named = bool(wanted)
        self.stacks = {} if self.named else stacks(model)
        if subject.wrap is not None:
            wrapped = subject.wrap(model)
            self.model_to_run = model if wrapped is None else wrapped
            self.blocks = blocks_of(model, wanted, required=False)
            self.depth = self.watch.depth()
        else:
            self.blocks = blocks_of(model, wanted)
        self.kinds = {fqn: group.label for group in block_groups(model, self.blocks) for fqn in group.fqns}
        self.watch.kinds = self.kinds
        if subject.wrap is not None:
            return
        backend, self.depth = self.prepared.backend()
        kwargs = dict(
            self.prepared.compile_kwargs,
            fullgraph=self.mode == "fullgraph" or self.task.fullgraph,
            backend=counting(backend, recorder),
        )

        def compile_one(region: torch.nn.Module, name: str) -> None:
            region.compile(**kwargs)
            if self.prepared.step is None:  # else `compiles_seen` has done it
                self.watch.instrument(region, name, recorder)

        recipe = self.prepared.training
        try:
            mesh = None
            if options.parallel.world_size > 1 or recipe.always_sharded:
                mesh = fake_mesh(options.parallel.world_size, recipe.replicas, recipe.tensor_parallel)
            program = apply_recipe(model, self.blocks, recipe, compile=compile_one, mesh=mesh)
        except ValueError as error:
            raise InputError(str(error)) from error
        # What is compiled is what is reported on; where nothing of the model is, its blocks.
        self.blocks = list(program.regions if ROOT not in dict(program.regions) else ()) or list(
            program.blocks
        )
        self.kinds |= {fqn: type(region).__name__ for fqn, region in self.blocks if fqn not in self.kinds}
        if self.prepared.step is None:
            self.program = program

    # ---- running ----

    def steps(self, recorder: Recorder) -> None:
        batches = self.subject.batches
        self.watch_gradients()
        if self.mode in ("reference", "numerics"):
            batches = batches[:COMPARED_STEPS]
            numerics.record(self.subject.model, self.trace)
            numerics.seed_everything(SEED)
        try:
            for i, batch in enumerate(batches):
                self.one_step(i, batch, recorder)
        except (InputError, EnvironmentUnfit, DepthNotReached):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _MACHINE:
                raise
            # whatever training would have met here is a result; the driver finds out whose fault it is
            self.send(self.raised(error))

    def watch_gradients(self) -> None:
        """Note every parameter that gets a gradient, before a step can drop it again."""

        def noted(name: str) -> Callable[[torch.Tensor], None]:
            return lambda parameter: self.trained.add(name)

        for name, parameter in self.subject.model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(noted(strip(name)))

    def sweep(self, task: SweepTask, recorder: Recorder) -> None:
        """Forecast the compiles of one rank over all shapes of the data."""
        from cftdiag.forecast.sweep import sweep

        program = self.program
        assert program is not None

        def run(shape: Shape) -> None:
            batch = self.prepared.extend(
                batch_of_shape(
                    self.subject.model,
                    shape.batch_size,
                    shape.length,
                    shape.variant,
                    self.options.subject.flash_varlen,
                )
            )
            with self.skip():
                program.step(batch)
                program.zero_grad()

        def progress(done: int, of: int, shape: Shape) -> None:
            self.step_index = shape.step
            self.progress("step", step=done, of=of, length=shape.length)

        found = sweep(run, task.shapes, recorder, model=self.subject.model, warm=task.warm, progress=progress)
        self.send(Forecast(rank=task.rank, swept=found))

    def one_step(self, i: int, batch: Mapping[str, Any], recorder: Recorder) -> None:
        self.step_index = recorder.step = i + 1
        batch_size, length = self.prepared.shapes[i]
        self.progress("step", step=i + 1, of=len(self.subject.batches), length=length)
        started = time.monotonic()
        if self.subject.before_step is not None:
            self.subject.before_step(self.subject.model, i)
        self.watch.look_for_late_hooks(i + 1)
        if i and self.subject.wrap is None and self.options.compile.scope in BY_BLOCK:
            self.watch.look_past_silent_calls()
        with self.skip():
            if self.program is not None:
                loss = self.program.step(dict(batch))
                self.program.zero_grad()
            else:
                assert self.prepared.step is not None
                loss = self.prepared.step(self.model_to_run, dict(batch))
        self.losses.append(loss)
        self.send(
            StepDone(step=i + 1, batch_size=batch_size, length=length, seconds=time.monotonic() - started)
        )

    # ---- telling ----

    def describe(self) -> None:
        model = self.subject.model
        kwargs = self.prepared.compile_kwargs
        self.send(
            Program(
                mode=self.mode,
                depth=self.depth,
                weightless=self.prepared.weightless,
                parameters=sum(p.numel() for p in model.parameters()),
                model_class=self.model_class,
                model_type=getattr(getattr(model, "config", None), "model_type", None),
                compile_kwargs={k: _jsonable(v) for k, v in kwargs.items() if k != "backend"},
                wrap=self.subject.wrap is not None,
                blocks=tuple(
                    ProgramBlock(
                        fqn=fqn,
                        cls=self.kinds.get(fqn, type(module).__name__).split("[")[0],
                        kind=self.kinds.get(fqn),
                        index=_index(fqn, i),
                    )
                    for i, (fqn, module) in enumerate(self.blocks)
                ),
                steps=tuple(
                    StepShape(step=i + 1, batch_size=b, length=n)
                    for i, (b, n) in enumerate(self.prepared.shapes)
                ),
                untouched=tuple(self.untouched),
                limit=self.limit,
                config_sha=self.config_sha(),
                build_seconds=self.build_seconds,
                settings=dynamo.settings_there(SOME_RELEASES),
            )
        )

    def config_sha(self) -> str | None:
        """Digest of the model's own config, by which a plan knows its model; None for a model without one."""
        from cftdiag.plan import config_sha

        config = getattr(self.subject.model, "config", None)
        return config_sha(config) if hasattr(config, "to_dict") else None

    def raised(self, error: BaseException) -> Raised:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if not _is_library(f.filename)] or list(frames)
        last = own[-1] if own else None
        return Raised(
            error=type(error).__name__,
            message=shorten(str(error).strip(), 4000),
            create_graph=differentiated_again(error),
            compile=is_compile_failure(error) or is_checkpoint_failure(error),
            where=Frame(file=last.filename, line=last.lineno, function=last.name, code=last.line)
            if last
            else None,
            step=self.step_index,
            block=self.watch.last if is_checkpoint_failure(error) else None,
        )

    def leave_out_untouched_stacks(self) -> None:
        """Nobody named the stacks: one that the training step never calls is not part of what it trains.

        Where it calls none at all they stay, as blocks that were to be compiled and never ran.
        """
        if self.named or self.subject.wrap is not None or self.options.compile.scope not in BY_BLOCK:
            return
        found = {name: [strip(fqn) for fqn, _ in blocks] for name, blocks in self.stacks.items()}
        called = {name for name, fqns in found.items() if any(self.watch.calls[fqn] for fqn in fqns)}
        if not called or len(called) == len(found):
            return
        self.untouched = sorted(f"{name}.*" for name in found if name not in called)
        gone = {fqn for name, fqns in found.items() if name not in called for fqn in fqns}
        self.blocks = [(fqn, block) for fqn, block in self.blocks if fqn not in gone]
        self.describe()

    def result(self, recorder: Recorder) -> None:
        checked = None
        if self.subject.check is not None and self.mode == "collect":
            try:
                checked = self.subject.check(self.subject.model, self.losses)
            except Exception as error:  # noqa: BLE001 - the user's own check is reported, never a source of causes
                checked = {"raised": one_line(error)}
        self.send(
            Result(
                graphs={fqn: tuple(sorted(ids)) for fqn, ids in recorder.graphs.items()},
                fullgraph=dict(self.watch.fullgraph),
                calls=dict(self.watch.calls),
                guards=entry_guards(recorder.codes) if self.mode in ("fullgraph", "collect") else {},
                never_ran=self.never_ran(recorder),
                trained=tuple(sorted(self.trained)),
                late_hooks=tuple(self.watch.late_hooks),
                saved_tensor_hooks=tuple(self.watch.saved_hooks.values()),
                passed_by=self.watch.passed_by,
                numerics=self.numerics(),
                wrong_code=tuple(
                    dataclasses.replace(found, block=recorder.owner(found.compile_id or ""))
                    for found in self.prepared.wrong_code
                ),
                undetermined=self.undetermined(),
                problems=tuple(recorder.problems),
                check=_jsonable(checked),
                peak_rss_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
            )
        )

    def never_ran(self, recorder: Recorder) -> tuple[NeverRan, ...]:
        """What was to be compiled and ran no graph, though the steps ran to their end."""
        if self.mode in ("reference", "eager", "sweep"):
            return ()
        kept = {fqn for fqn, _ in self.blocks} if self.untouched else None
        found = [
            NeverRan(
                name=recorder.blocks.name(idle.target) or idle.cls,
                cls=idle.cls,
                skipped_file=idle.skipped_file,
            )
            for idle in self.requests.idle(recorder.blocks.name)
        ]
        return tuple(never for never in found if kept is None or never.name in kept)

    def undetermined(self) -> tuple[Assumption, ...]:
        """What the verdict does not know: values that were assumed, and what an absent device would decide."""
        made_up = fastforward.undetermined() if self.prepared.weightless else []
        notes = [Assumption(meaning=text) for text in self.prepared.assumed]
        notes += [Assumption(meaning=note["meaning"], what=note["what"]) for note in made_up]
        if self.options.compile.target is not None:
            from cftdiag.target import assumptions

            notes += [Assumption(meaning=text) for text in assumptions(self.options.compile.target)]
        return tuple(notes)

    def numerics(self) -> Numerics | None:
        """Save the eager run (``reference``), or compare this one with it (``numerics``)."""
        if self.mode not in ("reference", "numerics"):
            return None
        self.trace.losses = [
            float(loss) if isinstance(loss, (int, float, torch.Tensor)) else None for loss in self.losses
        ]
        found = self.trace.named()
        if self.task.compare is None:
            assert self.task.save is not None
            torch.save(found, self.task.save)
            return None
        precision = numerics.precision_of(self.subject.model, self.subject.batches)
        differ = numerics.compare(torch.load(self.task.compare), found, precision)
        block = numerics.wrong_module([w.name for w in differ], [fqn for fqn, _ in self.blocks])
        wrong = [w for w in differ if not w.name.startswith(numerics.GIVEN)]
        names = tuple(w.name for w in wrong)
        return Numerics(
            ok=not wrong,
            backend=str(
                self.prepared.compile_kwargs.get("backend") or self.options.compile.backend or "aot_eager"
            ),
            worst=dataclasses.replace(wrong[0], block=block) if wrong else Worst(),
            failed=names,
            config=numerics.differing_config(),
            precision=precision,
        )


# ---- helpers ----


def _is_library(filename: str) -> bool:
    return (
        filename.startswith(os.path.dirname(torch.__file__))
        or filename.startswith(os.path.dirname(__file__))
        or filename.startswith("<")
    )


def _index(fqn: str, position: int) -> int:
    numbers = [part for part in fqn.split(".") if part.isdigit()]
    return int(numbers[-1]) if numbers else position


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


@contextlib.contextmanager
def _warnings_kept_quiet() -> Iterator[None]:
    """The child's stderr goes to a file that is read only after a crash; warnings would bury what matters
    there.
    """
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
