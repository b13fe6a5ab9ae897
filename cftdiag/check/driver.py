"""A check from request to report. It never compiles: strategy says which passes, runner runs them, judge
makes findings of their events, make_report the report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.check import data_forecast, side_by_side, strategy
from cftdiag.check.data_forecast import Swept
from cftdiag.check.judge import judge, judge_sweep, make_context, only_uneven
from cftdiag.check.make_report import make_report, timing, with_forecast
from cftdiag.check.outcome import Outcome
from cftdiag.check.proof_steps import INTERRUPTED, ProofSteps
from cftdiag.check.proofs import Compare, Prover, Run
from cftdiag.check.report import CheckReport
from cftdiag.check.runner import BuiltPass, PassResult, Progress, Runner
from cftdiag.check.strategy import Chosen
from cftdiag.diagnose.engine.probes import Numerics
from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.findings import Finding, at_least
from cftdiag.forecast.lengths import Data
from cftdiag.forecast.rank_forecast import RankForecast
from cftdiag.options import CheckOptions
from cftdiag.passes.launch import ForkServer, LiveFork
from cftdiag.passes.messages import COMPARED_STEPS, PassTask, Send
from cftdiag.subject import Origin, Subject, as_subject, resolve

#: What a reader is told of a subject with more steps than are compared.
PARTLY_COMPARED = f"loss and gradients were compared with eager's in the first {COMPARED_STEPS} steps"


def run_check(options: CheckOptions, progress: Progress | None = None) -> CheckReport:
    """Check the model of ``options.subject``.

    Raises :class:`~cftdiag.errors.InputError` for a wrong request and
    :class:`~cftdiag.errors.EnvironmentUnfit` where this machine cannot do it. Children are stopped whatever
    happens, Ctrl-C included.
    """
    if options.subject.model is None:
        raise InputError(
            "no model given; give --model with one of `cftdiag models`, a directory, a config.json, a hub id or file.py:build"
        )
    origin = resolve(options.subject.model)
    if origin.type == "file":
        options.for_subject()
    with contextlib.closing(ForkServer()) as launcher:
        return run(options, Runner(origin, launcher, progress, another=ForkServer))


def check(
    subject: Any,
    batches: Sequence[Mapping[str, Any]] | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> CheckReport:
    """Check a model name, a live model with batches, or a :class:`~cftdiag.subject.Subject`.

    ``options`` are the keywords of :class:`~cftdiag.options.CheckOptions`. A live Subject is checked in forked
    children where forking is safe, else in this process in one pass, its remedies unproved. Raises as
    :func:`run_check`.
    """
    try:
        parsed = CheckOptions(**options)
    except (TypeError, AttributeError) as error:
        raise InputError(f"an unknown option or one of a wrong type: {error}") from error
    if isinstance(subject, str):
        return run_check(parsed.with_(model=subject), progress)
    live = as_subject(subject if isinstance(subject, Subject) else (subject, batches or ()), "check()")
    origin = Origin(type="live", name=type(live.model).__name__)
    from cftdiag.passes.run_pass import run_task

    def run_forked(task: PassTask, send: Send) -> None:
        run_task(task, send, live)

    if LiveFork.safe():
        return run(parsed, Runner(origin, LiveFork(run_forked), progress))
    if parsed.compile.ac != "none" or parsed.parallel.world_size > 1:
        raise EnvironmentUnfit(
            "checkpointing and FSDP2 would change the live model, and this process has other threads or a GPU and so cannot be forked; "
            "give file.py:build instead"
        )

    def run_here(task: PassTask, send: Send) -> None:
        # a copy of the model and a Dynamo of its own: nothing of the caller's is changed but compiled code,
        # which is compiled again when needed
        import copy

        from cftdiag.torch_private import dynamo

        dynamo.reset()
        try:
            run_task(task, send, dataclasses.replace(live, model=copy.deepcopy(live.model)))
        finally:
            dynamo.reset()

    here = "checked in this process, on a copy of the model, without a time limit: it has other threads or a GPU and cannot be forked"
    return run(parsed, Runner(origin, None, progress, in_process=run_here), notes=[here])


def run(options: CheckOptions, runner: Runner, notes: Sequence[str] = ()) -> CheckReport:
    """One check. ``notes`` are told under "undetermined"."""
    data = None if options.data.path is None else data_forecast.read(options, runner.origin)
    if data is not None:
        options = data_forecast.first_options(options, data)
    return _Check(runner, list(notes)).run(options, data)


class _Check:
    """The passes of one check in their order. ``notes`` gathers what the reader must know beside the
    findings.
    """

    def __init__(self, runner: Runner, notes: list[str]) -> None:
        self.runner, self.notes = runner, notes
        self.skipped: dict[str, str] = {}

    def run(self, options: CheckOptions, data: Data | None) -> CheckReport:
        first = self.first_pass(options)
        chosen = strategy.choose(first, self.second_pass(first, options))
        main = chosen.main
        context = make_context(
            main,
            options,
            whole=chosen.whole,
            numerics=self.numerics(first, options),
            captures_all=self.skipped.get("fullgraph") == strategy.NO_BREAK,
        )
        if options.compile.scope == "none":
            self.notes.append("nothing was compiled, as --compile-scope none asks")
        outcome = judge(main, chosen.breaks, context)
        uneven = self.uneven_routing(first, options)
        if uneven is not None:
            told = only_uneven(_outcome(uneven, options).findings, outcome.findings)
            outcome = dataclasses.replace(outcome, findings=outcome.findings + told)
        swept = None if data is None else self.sweep(data, chosen, options)
        if swept is not None:
            outcome = judge_sweep(outcome, swept, context)
        findings = outcome.findings
        change_first: tuple[Mapping[str, Any], ...] = ()
        if options.budget.verify and self.runner.forks and main.outcome == "ok":
            findings, change_first = self.prove(main, outcome, options, swept)
        report = make_report(
            chosen,
            findings,
            context,
            origin=self.runner.origin,
            options=options,
            timing=timing(self.runner.passes, self.skipped, self.runner.started),
            notes=self.notes,
            change_first=change_first,
            uneven=uneven,
        )
        if data is None or swept is None:
            return report
        return with_forecast(report, data, swept, main, make_context(main, options), options)

    def first_pass(self, options: CheckOptions) -> BuiltPass:
        """The subject compiled as it asks."""
        first = self.runner.run("auto", options)
        if self.runner.forks and strategy.needs_eager(first):
            failure = strategy.own_failure(first, self.runner.run("eager", options))
            if failure is not None:
                raise failure
        built = strategy.built(first, options.budget.timeout)
        if built.program.untouched:
            self.notes.append(
                f"the training step calls no block of {', '.join(built.program.untouched)}, so these were "
                "left out; --blocks names what to check"
            )
        return built

    def second_pass(self, first: BuiltPass, options: CheckOptions) -> PassResult | None:
        """The other way of compiling, where it can differ from the first."""
        mode = strategy.second_mode(first)
        reason = strategy.why_no_second(first, forks=self.runner.forks)
        if reason is not None:
            self.skipped[mode] = reason
            return None
        return self.runner.run(mode, options)

    def numerics(self, first: BuiltPass, options: CheckOptions) -> Numerics | None:
        """Compiled against eager on a subject with real weights, each from a virgin model; None where it was
        not or could not be compared.
        """
        if not strategy.compares_numerics(first, options, forks=self.runner.forks):
            return None
        with tempfile.TemporaryDirectory(prefix="cftdiag-") as folder:
            saved = str(Path(folder) / "reference.pt")
            if not self.runner.run("reference", options, save=saved).ended:
                return None
            compiled = _comparison(self.runner.run("numerics", options, compare=saved))
            if compiled is not None and not compiled.ok:
                again = _comparison(self.runner.run("reference", options, compare=saved))
                if again is None or not again.ok:
                    self.notes.append(
                        "numerics: the model gives other results each time it runs eagerly under one seed, so nothing was compared"
                    )
                    return None
        if compiled is not None and len(first.steps) > COMPARED_STEPS and PARTLY_COMPARED not in self.notes:
            self.notes.append(PARTLY_COMPARED)
        return compiled

    def uneven_routing(self, first: BuiltPass, options: CheckOptions) -> BuiltPass | None:
        """A mixture of experts whose tokens spread unevenly; None where that makes no difference or did not
        end.
        """
        if not strategy.tries_uneven_routing(first, options, forks=self.runner.forks):
            return None
        uneven = self.runner.run("auto", options.with_(routing="idle_and_single"))
        if uneven.outcome != "ok" or not isinstance(uneven, BuiltPass):
            self.notes.append(f"the pass with uneven routing did not end: {uneven.detail}")
            return None
        self.notes.append(
            "routing of tokens to experts was assumed: balanced, and again with one idle expert and one expert with a single token"
        )
        return uneven

    def sweep(self, data: Data, chosen: Chosen, options: CheckOptions) -> Swept | None:
        """Forecast every group of ranks, and once more with every regime warmed; None where the passes before
        found nothing to build on.
        """
        if not self.runner.forks or not chosen.main.ended:
            self.notes.append("no forecast: the first pass did not end")
            return None
        fullgraph = chosen.whole is chosen.main
        passes: dict[int, PassResult] = {}
        cold: dict[int, RankForecast] = {}
        for task in data_forecast.tasks(data):
            done = passes[task.rank] = self.runner.run("sweep", options, fullgraph=fullgraph, sweep=task)
            if done.swept is None:
                self.notes.append(f"no forecast: its pass did not end ({done.detail or done.outcome})")
                return None
            cold[task.rank] = done.swept
        warmed: dict[int, RankForecast] = {}
        for task in data_forecast.tasks(data, data_forecast.warm_of(data, cold)):
            again = self.runner.run("sweep", options, fullgraph=fullgraph, sweep=task).swept
            if again is not None:
                warmed[task.rank] = again
        return Swept(
            events=passes[min(passes)].events,
            assumed=tuple(
                note.meaning
                for p in passes.values()
                if p.result is not None
                for note in p.result.undetermined
            ),
            cold=cold,
            warmed=warmed,
        )

    def baseline(self, options: CheckOptions) -> Outcome:
        """The check of other lengths or fewer layers, by the passes that the whole check makes: a fullgraph
        pass alone compiles nothing of a block that breaks.
        """
        first = strategy.built(self.runner.run("auto", options), options.budget.timeout)
        reason = strategy.why_no_second(first, forks=self.runner.forks)
        second = None if reason is not None else self.runner.run(strategy.second_mode(first), options)
        chosen = strategy.choose(first, second)
        context = make_context(
            chosen.main, options, whole=chosen.whole, captures_all=reason == strategy.NO_BREAK
        )
        return judge(chosen.main, chosen.breaks, context)

    def prove(
        self, main: BuiltPass, before: Outcome, asked: CheckOptions, swept: Swept | None
    ) -> tuple[tuple[Finding, ...], tuple[Mapping[str, Any], ...]]:
        """The findings with their remedies tried within the budget, and what to change first."""
        lengths = None
        if swept is not None:
            at_size = [c for c in swept.lead.compiles if c.batch_size == asked.subject.batch_size]
            lengths = tuple(dict.fromkeys(c.length for c in at_size))
        options = strategy.proof_options(asked, self.runner.origin, lengths)
        unproved = before.findings
        if not any(at_least(f.severity, "warning") for f in unproved):
            return unproved, ()

        steps = ProofSteps(unproved, self.runner.progress)
        runs: dict[str, BuiltPass] = {}

        def unlimited(changed: CheckOptions) -> CheckOptions:
            return changed.with_(timeout=options.budget.timeout)

        def means(by: _Check) -> tuple[Run, Compare]:
            def run(changed: CheckOptions) -> Outcome:
                first = by.runner.run("auto", changed)
                if not isinstance(first, BuiltPass):
                    raise EnvironmentUnfit(first.detail)
                runs[repr(unlimited(changed))] = first
                return _outcome(first, changed)

            def compare(changed: CheckOptions) -> bool | None:
                if steps.interrupted:
                    return None
                comparison = by.numerics(runs[repr(unlimited(changed))], changed)
                return None if comparison is None or _undone(changed, comparison) else comparison.ok

            return run, compare

        run, compare = means(self)
        if options != asked:
            # the same blocks and lengths without any remedy: what a proof is held against
            before = self.baseline(options)
        prover = Prover(
            options,
            before,
            run,
            config_subject=self.runner.origin.from_config,
            wrap=main.program.wrap,
            compare=compare,
            announce=steps.announce,
        )
        if self.runner.another is not None and side_by_side.worth(prover, unproved, main.seconds):
            other = self.runner.twin()
            with self.runner.quiet():
                steps.side_by_side(prover, unproved, *means(_Check(other, self.notes)), stop=other.close)
        findings = steps.prove(prover, unproved)
        change_first = steps.change_first(prover, findings)
        if steps.interrupted:
            self.notes.append(INTERRUPTED)
        elif prover.left:
            self.notes.append(
                f"{prover.left} remedies were not tried: the {options.budget.verify_budget:.0f} s for proofs were used up"
            )
        return findings, change_first


def _outcome(first: BuiltPass, options: CheckOptions, numerics: Numerics | None = None) -> Outcome:
    """One pass judged by itself."""
    whole = first if first.mode == "fullgraph" else None
    return judge(first, None, make_context(first, options, whole=whole, numerics=numerics))


def _undone(changed: CheckOptions, comparison: Numerics) -> bool:
    """True where the program set again what the change had set, so that the comparison proves nothing of it."""
    wanted = changed.patch.torch_config
    return any(name in wanted and value != wanted[name] for name, value in comparison.config.items())


def _comparison(done: PassResult) -> Numerics | None:
    return done.result.numerics if done.ended and done.result is not None else None
