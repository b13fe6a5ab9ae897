"""A patch proved: the same check runs on the files as they are and as they would be."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.errors import InputError
from cftdiag.findings import at_least
from cftdiag.fix.patch import Candidate, Patch, file_in, patches, read

#: Options of a check that write files or ask for proofs: a proof is the plain check.
_DROPPED = (
    "--json",
    "--plan",
    "--plots",
    "--keep",
    "--fail-on",
    "--verify-budget",
    "--baseline",
    "--write-baseline",
)
_FLAGS = ("--verify", "--no-verify", "-q", "--quiet", "--debug")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What a patch is held against."""

    graph_breaks: int
    recompiles: int
    errors: int
    compiles: int

    def better(self, before: Figures) -> bool:
        """True when something is less and nothing is more."""
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(before)
        return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))

    def against(self, before: Figures) -> str:
        """``graph breaks 36 -> 0, compiles 11 -> 1``."""
        return ", ".join(
            f"{name.replace('_', ' ')} {old} -> {new}"
            for (name, old), new in zip(
                dataclasses.asdict(before).items(), dataclasses.astuple(self), strict=True
            )
            if old != new
        )


def figures(data: Mapping[str, Any]) -> Figures:
    """The figures of a check: findings at warning or above by their kind, and compiles."""
    counts = dict.fromkeys(("graph_break", "recompile", "error"), 0)
    for finding in data["findings"]:
        if at_least(str(finding.get("severity")), "warning"):
            kind = {"limit_hit": "recompile"}.get(str(finding["kind"]), str(finding["kind"]))
            counts[kind if kind in counts else "error"] += int(finding.get("count") or 1)
    return Figures(
        graph_breaks=counts["graph_break"],
        recompiles=counts["recompile"],
        errors=counts["error"],
        compiles=len(data["compiles"]),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Proved:
    """A remedy as a patch, and what the check says with it. ``after`` is None where nothing could be said, for
    ``reason``; ``helps`` says whether less is left.
    """

    remedy: Candidate
    patches: tuple[Patch, ...]
    before: Figures
    after: Figures | None
    reason: str = ""

    @property
    def helps(self) -> bool:
        """True when the check ran and less is left."""
        return self.after is not None and self.after.better(self.before)


Check = Callable[[Sequence[Patch]], Mapping[str, Any]]
"""The check of the files with patches; raises :class:`InputError` where it came to no end."""


def prove(
    remedies: Sequence[Candidate], files: Sequence[Path], check: Check
) -> tuple[list[Proved], list[Candidate]]:
    """Each remedy written into the files on top of those that helped, and those that have no place in them."""
    texts = original = {path: read(path) for path in files}
    before = figures(check(()))
    tried: list[Proved] = []
    homeless: list[Candidate] = []
    for remedy in remedies:
        if not (before.graph_breaks or before.recompiles or before.errors):
            break
        changed = patches(texts, remedy.change)
        if not changed:
            homeless.append(remedy)
            continue
        now = texts | {patch.path: patch.after for patch in changed}
        whole = [Patch(path=p, before=original[p], after=now[p]) for p in now if now[p] != original[p]]
        after, reason = None, ""
        try:
            after = figures(check(whole))
        except InputError as error:
            reason = str(error)
        row = Proved(remedy=remedy, patches=tuple(changed), before=before, after=after, reason=reason)
        tried.append(row)
        if row.helps and after is not None:
            texts, before = now, after
    return tried, homeless


def checker(asked: Mapping[str, Any]) -> Check:
    """The check that a report came from, to be run on patched copies of its files."""
    arguments, directory = list(asked["arguments"]), Path(asked["directory"])

    def check(changed: Sequence[Patch]) -> Mapping[str, Any]:
        with _overlay(changed) as copies, tempfile.TemporaryDirectory(prefix="cftdiag-fix-") as scratch:
            saved = Path(scratch) / "check.json"
            command = [sys.executable, "-m", "cftdiag", *_again(arguments, directory, copies, saved)]
            paths = [*{str(copy.parent) for copy in copies.values()}, *{str(p.parent) for p in copies}]
            path = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
            done = subprocess.run(
                command, cwd=directory, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
            )
            if not saved.is_file():
                lines = [line for line in done.stderr.splitlines() if line.strip()]
                raise InputError(
                    lines[-1].removeprefix("error: ") if lines else f"exit code {done.returncode}"
                )
            data: dict[str, Any] = json.loads(saved.read_text(encoding="utf-8"))
            if data["verdict"] == "error":
                raise InputError("; ".join(data["undetermined"][:1]) or "no conclusion")
            return data

    return check


@contextlib.contextmanager
def _overlay(changed: Sequence[Patch]) -> Iterator[dict[Path, Path]]:
    """Patched copies of files, each with links to its neighbours, so that what stands beside it is found."""
    with tempfile.TemporaryDirectory(prefix="cftdiag-fix-") as folder:
        homes: dict[Path, Path] = {}
        copies: dict[Path, Path] = {}
        for patch in changed:
            home = patch.path.parent
            if home not in homes:
                homes[home] = Path(folder) / str(len(homes))
                homes[home].mkdir()
                for other in home.iterdir():
                    if other.name != "__pycache__":
                        (homes[home] / other.name).symlink_to(other)
            copy = homes[home] / patch.path.name
            copy.unlink(missing_ok=True)
            with open(copy, "w", encoding="utf-8", newline="") as stream:
                stream.write(patch.after)
            copies[patch.path] = copy
        yield copies


def _again(arguments: Sequence[str], directory: Path, copies: Mapping[Path, Path], saved: Path) -> list[str]:
    """The arguments of the check for the copies."""
    divided = arguments.index("--") if "--" in arguments else len(arguments)
    own: list[str] = []
    skip = False
    for word in arguments[:divided]:
        if skip or word in _FLAGS:
            skip = False
            continue
        name, equals, _ = word.partition("=")
        if name in _DROPPED:
            skip = not equals
            continue
        own.append(_moved(word, directory, copies))
    own += ["--no-verify", "--fail-on", "never", "--json", str(saved), "-q"]
    return [*own, *(_moved(word, directory, copies) for word in arguments[divided:])]


def _moved(word: str, directory: Path, copies: Mapping[Path, Path]) -> str:
    """A word of a command line with the copy of the file that it names."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    name = file_in(value)
    copy = copies.get((directory / name).resolve()) if name else None
    return word if copy is None else flag + equals + str(copy) + value[len(name) :]
