"""Where a finding is, as a repository's tools name it: relative to its root."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cftdiag.report import wording


def repository() -> Path:
    """Root of the repository of the working directory: the folder that holds ``.git``, else the working
    directory.
    """
    workspace = os.environ.get("GITHUB_WORKSPACE") or os.environ.get("CI_PROJECT_DIR")
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / ".git").exists() or (workspace and folder == Path(workspace)):
            return folder
    return here


def in_repository(file: str) -> str | None:
    """The file relative to the repository's root, with ``/``; None for one that is not in it, installed
    packages included.
    """
    if "/site-packages/" in file or "/dist-packages/" in file:
        return None
    path = Path(file)
    root = repository()
    for known, base in (
        (path if path.is_absolute() else Path.cwd() / path, root),
        (path.resolve(), root.resolve()),
    ):
        if known.is_relative_to(base):
            return known.relative_to(base).as_posix()
    return None


def place(finding: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """(file in the repository, line) to show a finding at: its own, else the checked file, which reaches the
    library that the finding is in.
    """
    where = finding.get("where") or {}
    own = in_repository(str(where["file"])) if where.get("file") else None
    if own is not None:
        line = where.get("line")
        return own, line if isinstance(line, int) and line > 0 else 1
    checked = checked_file(data)
    return checked, None if checked is None else 1


def checked_file(data: Mapping[str, Any]) -> str | None:
    """``train/mine.py`` of a check of ``mine.py:build``, where it is in the repository."""
    file = str((data.get("subject") or {}).get("name") or "").rpartition(":")[0]
    return in_repository(file) if file.endswith(".py") else None


def text(finding: Mapping[str, Any], shown: str | None) -> str:
    """One line: the explanation, where it is if that is not shown, how far it reaches, and the fix."""
    parts = [" ".join(str(finding.get("explanation") or finding.get("cause")).split())]
    where = finding.get("where") or {}
    if where.get("file") and in_repository(str(where["file"])) != shown:
        parts.append(f"At {wording.where(finding)}.")
    reach = wording.reach(finding)
    if reach:
        parts.append(f"Met {reach}.")
    remedy = wording.best_remedy(finding)
    if remedy is not None:
        parts.append(f"Fix: {' '.join(str(remedy.get('summary')).split())}")
    return " ".join(parts)
