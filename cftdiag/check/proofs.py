"""Proving remedies: apply the mechanical change, run the check again, and say what became of the finding.

Torch-free: the runs happen in passes. A remedy that does not help is kept and says so; one that this subject
cannot take, or for which no time was left, stays unproved (``verified: null``).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cftdiag.errors import CheckError, InputError
from cftdiag.findings import Finding, Remedy, at_least
from cftdiag.options import DYNAMIC, CheckOptions

#: Remedies proved for one finding at most: the first ones are the preferred ones.
MOST = 4
_ENVIRONMENT = {"TORCH_COMPILE_DYNAMIC_SOURCES": "torch.compiler.config.dynamic_sources"}
"""Environment variables that torch reads once, at import, and the setting that they end in: a pass has
imported torch already.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run gave: the findings, and figures for the report. ``ended`` is False for a timeout, a crash
    or an exception in the step.
    """

    findings: tuple[Finding, ...]
    compiles: int
    ended: bool

    def count(self, finding: Finding) -> int:
        """How often the cause of ``finding`` was met."""
        return sum(
            f.count
            for f in self.findings
            if (f.kind, f.cause) == (finding.kind, finding.cause) and f.severity != "info"
        )

    def figures(self, finding: Finding) -> dict[str, Any]:
        """JSON-ready figures beside a remedy."""
        return {"count": self.count(finding), "compiles": self.compiles}


Run = Callable[[CheckOptions, Finding], Outcome]


def apply_change(
    options: CheckOptions, change: Mapping[str, Any], *, config_subject: bool
) -> CheckOptions | None:
    """The options with a remedy's change; None for a change that has no meaning for this subject or that
    nothing here can make.
    """
    fields: dict[str, Any] = {}
    settings, environment, kwargs = (
        dict(options.torch_config),
        dict(options.env),
        dict(options.compile_kwargs),
    )
    for key, value in change.items():
        if key.startswith("torch."):
            settings[key] = value
        elif key == "env":
            for name, text in value.items():
                if name in _ENVIRONMENT:
                    settings[_ENVIRONMENT[name]] = text
                else:
                    environment[name] = str(text)
        elif key == "compile_kwargs":
            kwargs |= {k: v for k, v in value.items() if k not in ("dynamic", "fullgraph")}
            fields |= {k: v for k, v in value.items() if k == "fullgraph"}
            if "dynamic" in value:
                fields["dynamic"] = _dynamic(value["dynamic"])
        elif key == "dynamic":
            fields["dynamic"] = _dynamic(value)
        elif key in ("mark_dynamic", "mark_unbacked"):
            fields[key] = {name: [int(d) for d in dims] for name, dims in value.items()}
        elif key == "pad_to_multiple_of":
            fields[key] = int(value)
        elif key in ("attn", "flash_varlen", "dtype"):
            if not config_subject:
                return None
            fields[key] = value
        elif key in ("drop_last", "eager_warmup", "input_requires_grad"):
            if config_subject:
                return None
            fields[key] = value
        elif key in ("ac", "compile_scope", "compile_backend"):
            fields[key] = value
        else:
            return None
    try:
        return dataclasses.replace(
            options, torch_config=settings, env=environment, compile_kwargs=kwargs, **fields
        )
    except InputError:
        return None


def _dynamic(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else next(name for name, meaning in DYNAMIC.items() if meaning is value)
    )


class Prover:
    """Proves the remedies of all findings within one budget; equal changes are run once."""

    def __init__(
        self,
        options: CheckOptions,
        before: Outcome,
        run: Run,
        *,
        config_subject: bool,
        wrap: bool,
        announce: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.options, self.before, self.run = options, before, run
        self.config_subject, self.wrap, self.announce = config_subject, wrap, announce
        self.deadline = time.monotonic() + options.verify_budget
        self.left = 0
        self._known: dict[str, Outcome | None] = {}

    def prove(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """The findings with every remedy that could be tried proved or disproved."""
        return tuple(
            dataclasses.replace(f, remedies=self._remedies(f)) if at_least(f.severity, "warning") else f
            for f in findings
        )

    def _remedies(self, finding: Finding) -> tuple[Remedy, ...]:
        proved, tried = [], 0
        for remedy in finding.remedies:
            if remedy.change is None or tried == MOST:
                proved.append(remedy)
                continue
            changed = self._changed(remedy.change)
            if changed is None:
                proved.append(remedy)
                continue
            tried += 1
            proved.append(self._prove(finding, remedy, changed))
        # proved ones first, in the order of preference; an unsafe one never leads
        rank = {True: 0, None: 1, False: 2}
        return tuple(sorted(proved, key=lambda r: (r.unsafe, rank[r.verified])))

    def _changed(self, change: Mapping[str, Any]) -> CheckOptions | None:
        if self.wrap and {"compile_scope", "ac", "fullgraph"} & set(change):
            return None  # a subject that wraps itself decides these
        return apply_change(self.options, change, config_subject=self.config_subject)

    def _prove(self, finding: Finding, remedy: Remedy, changed: CheckOptions) -> Remedy:
        if self.before.count(finding) == 0:
            return remedy  # what is not met without the remedy proves nothing with it
        key = repr((changed, finding.kind == "numerics"))
        if key not in self._known:
            if time.monotonic() > self.deadline:
                self.left += 1
                return remedy
            self.announce(remedy.summary)
            try:
                self._known[key] = self.run(changed, finding)
            except CheckError:
                self._known[key] = None
        after = self._known[key]
        if after is None:
            return remedy
        before_errors = {(f.kind, f.cause) for f in self.before.findings if f.severity == "error"}
        new_errors = [
            f for f in after.findings if f.severity == "error" and (f.kind, f.cause) not in before_errors
        ]
        gone = after.count(finding) == 0 and not new_errors and (after.ended or not self.before.ended)
        if not after.ended and not any(f.kind == "error" for f in after.findings):
            gone = False  # a run that did not end shows nothing
        return dataclasses.replace(
            remedy, verified=gone, before=self.before.figures(finding), after=after.figures(finding)
        )
