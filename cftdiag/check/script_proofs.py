"""Remedies tried on the script itself: those that reach it from outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cftdiag.check import script_report
from cftdiag.check.outcome import Outcome, compiled
from cftdiag.check.proof_steps import INTERRUPTED, ProofSteps
from cftdiag.check.proofs import Prover
from cftdiag.check.runner import Progress
from cftdiag.check.script import Rehearsed, ScriptOptions, rehearse
from cftdiag.errors import InputError
from cftdiag.findings import Finding, Remedy
from cftdiag.options import DYNAMIC, CheckOptions

#: Options that a rehearsal can take over into every script.
_REACHES = frozenset({"torch_config", "env", "compile_kwargs", "dynamic", "fullgraph"})
#: Options that it can take over where the script has what they change.
_MAY_REACH = frozenset({"pad_to_multiple_of", "drop_last", "input_requires_grad", "model_config"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proved:
    """What became of the remedies of a rehearsal."""

    findings: tuple[Finding, ...]
    change_first: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be tried, and why."""


def prove(rehearsed: Rehearsed, options: ScriptOptions, progress: Progress) -> Proved:
    """Try each remedy that can be applied from outside, and the verified ones together."""
    plain = CheckOptions(
        torch_config=options.torch_config,
        env=options.env,
        compile_kwargs=options.compile_kwargs,
        verify_budget=options.verify_budget,
        timeout=options.timeout,
    )
    own: set[str] = set()

    def run(changed: CheckOptions) -> Outcome:
        differs = _differs(plain, changed)
        beyond = differs - _REACHES - _MAY_REACH
        if beyond:
            own.update(beyond)
            raise InputError("this change belongs into the script")
        again = rehearse(_applied(options, changed), lambda event: None)
        met = set() if again.first.outcome is None else set(again.first.outcome.applied)
        missed = differs & _MAY_REACH - met
        if missed:
            own.update(missed)
            raise InputError("the script has nothing that takes this change")
        return outcome(again)

    steps = ProofSteps(rehearsed.findings, progress)
    prover = Prover(plain, outcome(rehearsed), run, config_subject=False, wrap=True, announce=steps.announce)
    findings = steps.prove(prover, tuple(_as_edits(f) for f in rehearsed.findings))
    change_first = steps.change_first(prover, findings)
    notes = [INTERRUPTED] if steps.interrupted else []
    if own:
        names = ", ".join(sorted(name.replace("_", " ") for name in own))
        notes.append(f"remedies that only the script's own code can take were not tried: {names}")
    if prover.left and not steps.interrupted:
        notes.append(
            f"{prover.left} remedies were not tried: the {options.verify_budget:.0f} s for proofs were used up"
        )
    return Proved(findings=findings, change_first=change_first, notes=tuple(notes))


def _as_edits(finding: Finding) -> Finding:
    """The finding whose remedies say what to write in a script, where an option of the check means nothing."""

    def worded(remedy: Remedy) -> Remedy:
        change = remedy.change or {}
        if remedy.edit is None and set(change) == {"pad_to_multiple_of"}:
            edit = f"pad_to_multiple_of={change['pad_to_multiple_of']}  # of the collator or the tokenizer"
            return dataclasses.replace(remedy, edit=edit)
        return remedy

    return dataclasses.replace(finding, remedies=tuple(worded(r) for r in finding.remedies))


def outcome(rehearsed: Rehearsed) -> Outcome:
    """What a proof is held against."""
    end = rehearsed.first
    graphs = compiled(e for e in rehearsed.run.events if e.rank == end.rank)
    return Outcome(
        findings=rehearsed.findings,
        compiled=graphs,
        ended=all(e.exit_code == 0 and not e.timed_out for e in rehearsed.ends),
        # a block that shares the graph of another one compiles nothing and runs it all the same
        ran=frozenset(
            [
                *(graph.block or "<root>" for graph in graphs),
                *(b.fqn for b in script_report.blocks(rehearsed, rehearsed.findings) if b.graphs),
            ]
        ),
    )


def _differs(plain: CheckOptions, changed: CheckOptions) -> set[str]:
    """Names of the options that a remedy changes."""
    before, after = plain.flat(), changed.flat()
    return {name for name in before if before[name] != after[name]} - {"timeout"}


def _applied(options: ScriptOptions, changed: CheckOptions) -> ScriptOptions:
    """The rehearsal's options with a remedy's change."""
    kwargs = dict(changed.patch.compile_kwargs)
    if changed.compile.dynamic is not None:
        kwargs["dynamic"] = DYNAMIC[changed.compile.dynamic]
    if changed.compile.fullgraph is not None:
        kwargs["fullgraph"] = changed.compile.fullgraph
    flat = changed.flat()
    return dataclasses.replace(
        options,
        torch_config=changed.patch.torch_config,
        env=changed.patch.env,
        compile_kwargs=kwargs,
        timeout=changed.budget.timeout,
        keep=None,
        **{name: flat[name] for name in _MAY_REACH},
    )
