"""Torch in a rehearsed process: what is replaced, from the import of torch to the process's end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cftdiag.rehearse.settings import WORK, Fault, Outcome, Rehearsal

if TYPE_CHECKING:
    from cftdiag.rehearse.step_work import StepWork

#: Lines that are named for one thing that was made up.
PLACES = 5
_running: _Training | None = None


def install(settings: Rehearsal) -> None:
    """Make every torch program of this process skip its arithmetic and be watched."""
    global _running
    _running = _Training(settings)


def outcome(fault: Fault | None) -> Outcome:
    """What is known at the process's end."""
    return Outcome(fault=fault) if _running is None else _running.outcome(fault)


class _Training:
    def __init__(self, settings: Rehearsal) -> None:
        import torch

        from cftdiag import fastforward
        from cftdiag.monitor import injected
        from cftdiag.payoff.allocations import Allocations
        from cftdiag.rehearse import (
            absent_kernels,
            absent_packages,
            backend,
            callbacks,
            collectives,
            coverage,
            cuda_alias,
            hf_trainer,
            metrics,
            pretrained,
            ranks,
            remedies,
            serialized,
            weights,
        )
        from cftdiag.rehearse.step_work import StepWork
        from cftdiag.target import devices, sdpa
        from cftdiag.torch_private import rehearsal

        self.settings = settings
        # held: a generator's context that nobody holds is left at once
        self.until_the_end = contextlib.ExitStack()
        self.version = str(torch.__version__)
        self.monitor = injected.start(
            {
                "run_dir": settings.run_dir,
                "max_steps": settings.steps,
                "exchange": "none",
                # the last step of the rehearsal asks which compiled modules never ran
                "warmup_steps": settings.steps - 1,
            }
        )
        self.monitor.dynamo_imported()
        if settings.torch_config:
            from cftdiag.torch_settings import torch_config

            self.until_the_end.enter_context(torch_config(settings.torch_config))
        self.alias = cuda_alias.install(settings)
        self.applied = remedies.install(settings)
        self.compiled = backend.install(settings, self.applied)
        ranks.install(settings)
        serialized.install(here=self.alias is not None)
        self.weights = weights.install(settings)
        self.launches = absent_kernels.Launches() if self.alias is None else absent_kernels.install()
        absent_packages.install(settings.stand_ins)
        pretrained.install(settings, self.applied)
        self.callbacks = callbacks.install(self.monitor)
        self.counter = coverage.Counter(self.monitor.models, self.callbacks)
        hf_trainer.install(settings, self.compiled, self.counter)
        self.stops = metrics.install(lambda: self.monitor.steps)
        self.until_the_end.enter_context(fastforward.routing_policy(settings.routing))
        fastforward.numbers_from(lambda: metrics.plausible(self.monitor.steps))
        self.collectives: collectives.Collectives | None = None
        self.work: StepWork | None = None
        if settings.plain:
            torch.compiler.set_stance("force_eager")
        elif not settings.weights:
            fastforward.Graph.on_run = self._graph_ran
            if settings.eager:
                torch.compiler.set_stance("force_eager")
            if settings.count:
                self.work = StepWork(lambda: self.monitor.steps, Allocations(self.monitor.models))
                fastforward.Graph.on_end = self.work.graph_ran
                if self.alias is not None:
                    rehearsal.update_as_on_gpu()
                if settings.eager and settings.device is not None:
                    spec = devices.device(settings.device)
                    if spec is not None:
                        self.until_the_end.enter_context(sdpa.eager_as_on(spec))
            self.collectives = (
                collectives.Collectives(settings, lambda: self.monitor.steps) if settings.compared else None
            )
            coverage.CountingSkipMode(self.counter, self.collectives, self.work).__enter__()

    def _graph_ran(self, graph: Any, env: Any) -> None:
        self.counter.graph_ran(graph, env)
        if self.work is not None:
            self.work.graph_runs(graph)

    def outcome(self, fault: Fault | None) -> Outcome:
        from cftdiag import fastforward
        from cftdiag.rehearse import pretrained

        if self.collectives is not None:
            self.collectives.close()
        if self.work is not None:
            with contextlib.suppress(OSError):
                self.work.write(Path(self.settings.scratch) / WORK)
        made_up = fastforward.undetermined()
        notes = _with_places(made_up)
        if self.alias is not None and self.alias.asked:
            notes.append(self.alias.differs())
        notes += [*self.launches.notes(), *self.stops.notes()]
        notes += [
            f"{name} is not installed here: its functions were stood in for by their shapes"
            for name in self.settings.stand_ins
        ]
        models, compiled = self.monitor.models(), self.compiled.roots()
        described = self.weights.described(compiled, models)
        return dataclasses.replace(
            described,
            compiled_flops=self.counter.compiled,
            eager_flops=float(sum(self.counter.eager.values())),
            eager=tuple(self.counter.shares(models, compiled)) if described.parameters else (),
            callbacks=self.callbacks.effects(),
            torch=self.version,
            fault=fault,
            ended_by_limit=self.monitor.steps >= self.settings.steps,
            evaluated=self.compiled.evaluated,
            compile_kwargs=self.compiled.kwargs(),
            applied=tuple(sorted(self.applied.names)),
            stood_in=tuple(self._stood_in()),
            guessed=any(note["what"] == "read" for note in made_up) and not self.compiled.finished,
            undetermined=tuple(dict.fromkeys([*notes, *self.compiled.notes, *pretrained.NOTES])),
        )

    def _stood_in(self) -> Iterator[str]:
        if self.alias is not None and self.alias.asked:
            yield "CUDA"
        if self.settings.world_size > 1:
            yield "other ranks"
        if self.launches.names or self.settings.stand_ins:
            yield "kernels"


def _with_places(notes: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was made up, one sentence a kind, with the lines that read it."""
    places: dict[str, list[str]] = {}
    for note in notes:
        where = note["where"]
        found = places.setdefault(str(note["meaning"]), [])
        if note["what"] == "read" and where["file"]:
            found.append(f"{os.path.basename(where['file'])}:{where['line']}")
    return [
        f"{meaning} ({', '.join(list(dict.fromkeys(lines))[:PLACES])})" if lines else meaning
        for meaning, lines in places.items()
    ]
