"""tlparse's pages of a recorded trace, beside our own report: which page belongs to which compile."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.monitor import rundir

_RANK = re.compile(r"rank_(\d+)_")
_COMPILE = re.compile(r"\[(\d+/\d+)(?:_(\d+))?\]")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pages:
    """What tlparse wrote."""

    indexes: tuple[Path, ...]
    """One page a log."""
    compiles: Mapping[tuple[int, str], Path]
    """(rank, compile id ``0/1``) -> the page of its last attempt."""


def write_pages(source: str | Path, out: str | Path) -> Pages:
    """Run tlparse on the raw trace of a run directory, on a TORCH_TRACE directory or on one log of it; each
    log gets a directory of its own in ``out``.

    Raises :class:`InputError` without a trace, or where ``out`` has pages already,
    :class:`EnvironmentUnfit` without tlparse.
    """
    logs = _logs(Path(source))
    executable = shutil.which("tlparse") or shutil.which("tlparse", path=Path(sys.executable).parent)
    if executable is None:
        raise EnvironmentUnfit("tlparse is not installed; pip install tlparse")
    indexes: list[Path] = []
    compiles: dict[tuple[int, str], Path] = {}
    for rank, log in logs:
        directory = Path(out).absolute() / log.stem
        if directory.exists():
            raise InputError(f"{directory} is there already; give another directory to --tlparse")
        directory.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [executable, str(log), "-o", str(directory), "--no-browser"], capture_output=True, text=True
        )
        if done.returncode or not (directory / "index.html").is_file():
            said = (done.stderr or done.stdout).strip().splitlines()
            raise EnvironmentUnfit(
                f"tlparse could not read {log} ({said[-1] if said else f'exit code {done.returncode}'}); "
                "report without --tlparse"
            )
        indexes.append(directory / "index.html")
        # A rank that was started again numbers its compiles anew; the first start keeps its links.
        compiles = {(rank, key): page for key, page in _compiles(directory).items()} | compiles
    return Pages(indexes=tuple(indexes), compiles=compiles)


def with_links(run: Mapping[str, Any], pages: Pages) -> dict[str, Any]:
    """The run's report with ``tlparse``, the path of its page, on each compile that has one."""
    rows = []
    for row in run["compiles"]:
        page = pages.compiles.get((row["rank"], str(row["compile_id"]).partition("_")[0]))
        rows.append({**row, "tlparse": None if page is None else str(page)})
    return {**run, "compiles": rows}


def _logs(source: Path) -> list[tuple[int, Path]]:
    if source.is_file() and source.suffix == ".log":
        found = [source]
    else:
        inner = source / rundir.TRACE
        found = sorted((inner if inner.is_dir() else source).glob("*.log"))
    if not found:
        raise InputError(
            f"{source} has no raw trace for tlparse; record one with `cftdiag run --trace`, or give a directory "
            "that TORCH_TRACE=DIR wrote"
        )
    return [(int(match[1]) if (match := _RANK.search(log.name)) else 0, log) for log in found]


def _compiles(directory: Path) -> dict[str, Path]:
    listed = json.loads((directory / "compile_directory.json").read_text(encoding="utf-8"))
    attempts: dict[str, tuple[int, Path]] = {}
    for key, entry in listed.items():
        match = _COMPILE.fullmatch(key)
        names = [artifact["url"] for artifact in entry["artifacts"]]
        page = next((u for u in names if Path(u).name.startswith("compilation_metrics")), None)
        if match is not None and page is not None:
            attempt = int(match[2] or 0)
            attempts[match[1]] = max(attempts.get(match[1], (-1, directory)), (attempt, directory / page))
    return {key: page for key, (_, page) in attempts.items()}
