"""A run that was recorded: its files, what they mean, and its report."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any

from cftdiag.details import plain
from cftdiag.findings import Finding
from cftdiag.monitor import comparable, run_report
from cftdiag.monitor.run_files import RunFiles, read_run
from cftdiag.monitor.run_findings import findings


class Run(RunFiles):
    """A run directory, or a directory of TORCH_TRACE files, with its findings."""

    @functools.cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What the events mean, worst first."""
        return findings(self)

    def to_dict(self, *, eager_s: float | None = None) -> dict[str, Any]:
        """The report, schema ``cftdiag.run/1``."""
        return run_report.to_dict(self, self.findings, eager_s=eager_s)

    def frame(self, what: str = "events") -> Any:
        """A pandas data frame of ``events``, ``steps`` or ``findings``; ``ValueError`` without pandas or for
        another name.
        """
        if what not in ("events", "steps", "findings"):
            raise ValueError(f"no data frame of {what!r}; give 'events', 'steps' or 'findings'")
        try:
            import pandas
        except ImportError as error:
            raise ValueError("data frames need the package pandas; pip install pandas") from error
        rows = [_row(item) for item in getattr(self, what)]
        return pandas.DataFrame(rows)


def load_run(path: str | os.PathLike[str]) -> Run:
    """Read a run directory or a TORCH_TRACE directory, finished or not; ``ValueError`` with one line when it
    is neither.
    """
    files = read_run(path)
    return Run(**{f.name: getattr(files, f.name) for f in dataclasses.fields(files)})


def report(
    path: str | os.PathLike[str], *, eager: float | str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """The report of a run directory or a TORCH_TRACE directory; ``ValueError`` with one line when it is
    neither.

    ``eager`` is the seconds of a step without torch.compile, or the run directory of such a run: with it the
    break-even step is told. A run that differs in more than that is refused with ``ValueError``.
    """
    run = load_run(path)
    seconds = eager if isinstance(eager, int | float) or eager is None else _eager_seconds(run, eager)
    return run.to_dict(eager_s=seconds)


def _eager_seconds(run: RunFiles, path: str | os.PathLike[str]) -> float | None:
    eager = read_run(path)
    apart = comparable.differences(run, eager)
    if apart:
        raise ValueError(
            f"{path}: is not this run without torch.compile: {'; '.join(apart)}; run the same again, eager"
        )
    return run_report.steady_seconds(eager)


def _row(item: Any) -> dict[str, Any]:
    row = plain(item)
    for key in ("code", "guard", "where"):
        value = row.get(key)
        if isinstance(value, dict):
            row.pop(key)
            row.update({f"{key}_{name}": part for name, part in value.items()})
    detail = row.pop("detail", None) or {}
    row.update({key: detail[key] for key in ("cause", "remedy", "status", "batch") if key in detail})
    seconds = row.get("seconds")
    if isinstance(seconds, dict):
        row["seconds"] = seconds.get("total", seconds.get("backward"))
    return row
