"""Remedies tried on the script itself: those that reach it from outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from cftdiag.check.outcome import Outcome, compiled
from cftdiag.check.proofs import Prover
from cftdiag.check.runner import Progress
from cftdiag.check.script import Rehearsed, ScriptOptions, rehearse
from cftdiag.errors import InputError
from cftdiag.findings import Finding
from cftdiag.options import DYNAMIC, CheckOptions
from cftdiag.passes.messages import ProgressEvent

#: Options that a rehearsal can take over into the script; any other belongs into the script's own code.
_REACHES = frozenset({"torch_config", "env", "compile_kwargs", "dynamic", "fullgraph"})


def prove(
    rehearsed: Rehearsed, options: ScriptOptions, progress: Progress
) -> tuple[tuple[Finding, ...], list[str]]:
    """The findings with each remedy tried that can be applied from outside, and what could not be tried."""
    plain = CheckOptions(
        torch_config=options.torch_config,
        env=options.env,
        compile_kwargs=options.compile_kwargs,
        verify_budget=options.verify_budget,
        timeout=options.timeout,
    )

    def run(changed: CheckOptions) -> Outcome:
        return outcome(rehearse(_applied(options, plain, changed, rehearsed), lambda event: None))

    announce: Callable[[str], None] = lambda text: progress(ProgressEvent(phase="prove", text=text))  # noqa: E731
    prover = Prover(plain, outcome(rehearsed), run, config_subject=False, wrap=True, announce=announce)
    findings = prover.prove(rehearsed.findings)
    left = (
        [f"{prover.left} remedies were not tried: the {options.verify_budget:.0f} s for proofs were used up"]
        if prover.left
        else []
    )
    return findings, left


def outcome(rehearsed: Rehearsed) -> Outcome:
    """What a proof is held against."""
    end = rehearsed.first
    graphs = compiled(e for e in rehearsed.run.events if e.rank == end.rank)
    return Outcome(
        findings=rehearsed.findings,
        compiled=graphs,
        ended=end.exit_code == 0 and not end.timed_out,
        ran=frozenset(graph.block or "<root>" for graph in graphs),
    )


def _applied(
    options: ScriptOptions, plain: CheckOptions, changed: CheckOptions, rehearsed: Rehearsed
) -> ScriptOptions:
    """The rehearsal's options with a remedy's change; :class:`InputError` for one that the script must make
    itself.
    """
    before, after = plain.flat(), changed.flat()
    differs = {name for name in before if before[name] != after[name]} - {"timeout"}
    if not differs <= _REACHES:
        raise InputError("this change belongs into the script")
    kwargs = dict(changed.patch.compile_kwargs)
    if changed.compile.dynamic is not None:
        kwargs["dynamic"] = DYNAMIC[changed.compile.dynamic]
    if changed.compile.fullgraph is not None:
        kwargs["fullgraph"] = changed.compile.fullgraph
    return dataclasses.replace(
        options,
        torch_config=changed.patch.torch_config,
        env=changed.patch.env,
        compile_kwargs=kwargs,
        ranks=(rehearsed.first.rank,),
        timeout=changed.budget.timeout,
        keep=None,
    )
