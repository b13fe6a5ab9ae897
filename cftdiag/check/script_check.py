"""The check of a command, from request to report. Torch-free."""

from __future__ import annotations

import dataclasses

from cftdiag.check import script_payoff, script_proofs, script_report
from cftdiag.check.report import CheckReport
from cftdiag.check.runner import Progress
from cftdiag.check.script import ScriptOptions, judge_ends, rehearse, with_blame, with_stand_ins


def check_script(options: ScriptOptions, progress: Progress = lambda event: None) -> CheckReport:
    """Rehearse a command, prove remedies on it, and report.

    Raises :class:`InputError` for a command that cannot be rehearsed or does not train, and
    :class:`EnvironmentUnfit` where no conclusion was reached.
    """
    rehearsed, options = with_stand_ins(rehearse(options, progress), options, progress)
    rehearsed = with_blame(rehearsed, options, progress)
    judge_ends(rehearsed, options)
    gain, unknown = script_payoff.payoff(rehearsed, options, progress) if options.count else (None, None)
    proved = script_proofs.Proved(findings=rehearsed.findings)
    if options.verify and not rehearsed.first.timed_out:
        proved = script_proofs.prove(rehearsed, options, progress)
    report = script_report.build(rehearsed, options, proved.findings)
    notes = [*proved.notes]
    if unknown is not None:
        notes.append(unknown)
    return dataclasses.replace(
        report,
        undetermined=(*report.undetermined, *notes),
        change_first=proved.change_first,
        payoff=gain,
    )
