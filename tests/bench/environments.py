"""Environments of their own for the trainers that are compared: an interpreter each, named or made."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
_ASK = """
import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment:
    """One interpreter and the versions of what was asked about; None for what it has not."""

    python: str
    versions: Mapping[str, str | None]


def look(python: str, packages: Iterable[str]) -> Environment:
    """Ask an interpreter for its versions. Raises ``ValueError`` for one that does not run."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK, *packages], capture_output=True, text=True, timeout=120, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(f"{python} does not run ({error}); give the Python of an environment") from error
    return Environment(python=python, versions=json.loads(done.stdout))


def named(texts: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """``peer=PATH`` of the command line. Raises ``ValueError`` for a peer that is none."""
    found = {}
    for text in texts:
        peer, _, path = text.partition("=")
        if peer not in known or not path:
            raise ValueError(f"--python {text}: give PEER=PATH, PEER one of {', '.join(known)}")
        found[peer] = path
    return found


def make(folder: Path, requirements: Iterable[str]) -> str:
    """The Python of a virtual environment in ``folder`` with these packages, made where it is not there yet. ``torch``
    has the release of ``constraints.txt``.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    # torch first and by itself: a range asked for by another package would take whatever build is newest
    for wanted in (["torch"], list(requirements)):
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), *wanted], check=True, stdout=sys.stderr
        )  # fmt: skip
    return str(python)
