"""A baseline: the findings that are known, in a file beside the code. Only what is new fails."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from cftdiag.compare.fingerprint import fingerprints, place
from cftdiag.findings import SEVERITIES, at_least

SCHEMA = "cftdiag.baseline/1"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One known finding. All but fingerprint and severity is for its reader."""

    fingerprint: str
    """What the finding is about, without lines, addresses and folders."""
    severity: str
    kind: str
    cause: str
    file: str
    function: str
    code: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baseline:
    """A ``cftdiag.baseline/1`` object."""

    entries: tuple[Entry, ...] = ()

    def known(self, fingerprint: str, severity: str) -> bool:
        """True for a finding that is in it and has not become worse."""
        entry = next((e for e in self.entries if e.fingerprint == fingerprint), None)
        return entry is not None and at_least(entry.severity, severity)

    def unmet(self, met: Iterable[str]) -> tuple[Entry, ...]:
        """Entries whose fingerprint is not among those met."""
        seen = set(met)
        return tuple(e for e in self.entries if e.fingerprint not in seen)

    @classmethod
    def of(cls, findings: Iterable[Mapping[str, Any]], *, without: Collection[int] = ()) -> Baseline:
        """The findings at warning or above, in an order that does not depend on the run. ``without``: indices of
        those that a comment accepts.
        """
        rows = list(findings)
        entries = []
        for i, (print_, finding) in enumerate(zip(fingerprints(rows), rows, strict=True)):
            if i in without or not at_least(str(finding["severity"]), "warning"):
                continue
            file, function, code = place(finding)
            entries.append(
                Entry(
                    fingerprint=print_,
                    severity=str(finding["severity"]),
                    kind=str(finding["kind"]),
                    cause=str(finding["cause"]),
                    file=file,
                    function=function,
                    code=code,
                )
            )
        return cls(entries=tuple(sorted(entries, key=lambda e: (e.file, e.cause, e.fingerprint))))

    def write(self, path: str | Path) -> None:
        """Write it as JSON; raises ``ValueError`` for a path that cannot be written."""
        data = {"schema": SCHEMA, "findings": [dataclasses.asdict(e) for e in self.entries]}
        try:
            Path(path).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot write {path}: {error.strerror or error}; name another file") from error

    @classmethod
    def read(cls, path: str | Path) -> Baseline:
        """Read one; raises ``ValueError`` with one line for a file that is none."""
        how = "write one with cftdiag check --write-baseline"
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ValueError(f"cannot read the baseline {path}: {reason}; {how}") from error
        except ValueError as error:
            raise ValueError(f"{path}: is not JSON ({error}); {how}") from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"{path}: is no {SCHEMA} object (schema {found!r}); {how}")
        names = [f.name for f in dataclasses.fields(Entry)]
        try:
            rows = [Entry(**{name: str(row[name]) for name in names}) for row in data["findings"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: malformed baseline ({error}); {how}") from error
        for row in rows:
            if row.severity not in SEVERITIES:
                raise ValueError(f"{path}: unknown severity {row.severity!r}; {how}")
        return cls(entries=tuple(rows))
