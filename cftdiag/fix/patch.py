"""The mechanical remedies of a check as patches of the files that it was asked about."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.check.changes import edit_of
from cftdiag.fix.source import edited

#: Changes that alter what is trained or computed, whatever a remedy says of itself.
CHANGES_NUMBERS = frozenset({"attn", "dtype", "drop_last", "pad_to_multiple_of", "input_requires_grad"})

#: Key of a remedy's change -> key of the trainer's YAML.
_YAML_KEYS = {
    key: key for key in ("attn", "dynamic", "ac", "compile_scope", "compile_backend", "pad_to_multiple_of")
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """One file before and after a change."""

    path: Path
    before: str
    after: str

    def diff(self, context: int = 3) -> str:
        """A unified diff that ``patch -p1`` and ``git apply`` take, with paths from the working directory on."""
        path = self.path
        if path.is_absolute() and path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        name = path.as_posix().lstrip("/")
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"a/{name}",
            f"b/{name}",
            n=context,
        )
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A remedy that a machine can carry out. ``edit`` is what a person would write."""

    causes: tuple[str, ...]
    change: Mapping[str, Any]
    edit: str
    summary: str
    verified: bool | None
    unsafe: bool
    changes_numbers: bool


def candidates(data: Mapping[str, Any]) -> list[Candidate]:
    """The mechanical remedies of a check in the order in which they are to be tried: those proved together,
    then the best of each finding that is left.
    """
    found: dict[str, Candidate] = {}
    first = [str(row["edit"]) for row in data.get("change_first") or ()]
    for finding in data["findings"]:
        if finding.get("severity") == "info":
            continue
        for remedy in finding.get("remedies") or ():
            if not remedy.get("change") or remedy.get("verified") is False:
                continue
            if remedy.get("applicability") == "diagnosis":
                continue
            key = repr(remedy["change"])
            causes = (*(found[key].causes if key in found else ()), str(finding.get("cause")))
            found[key] = Candidate(
                causes=tuple(dict.fromkeys(causes)),
                change=remedy["change"],
                edit=str(remedy.get("edit") or edit_of(remedy["change"])),
                summary=str(remedy.get("summary")),
                verified=remedy.get("verified"),
                unsafe=bool(remedy.get("unsafe")),
                changes_numbers=remedy.get("applicability") == "changes_numbers"
                or bool(CHANGES_NUMBERS & set(remedy["change"])),
            )

    def order(candidate: Candidate) -> tuple[int, bool, bool]:
        rank = first.index(candidate.edit) if candidate.edit in first else len(first)
        return rank, candidate.verified is not True, candidate.changes_numbers

    return sorted(found.values(), key=order)


def read(path: Path) -> str:
    """The text of a file with its line ends as they are."""
    with open(path, encoding="utf-8", newline="") as stream:
        return stream.read()


def patches(texts: Mapping[Path, str], change: Mapping[str, Any]) -> list[Patch] | None:
    """A change made in files, given with their texts: keywords of calls in each that has such calls, settings and
    variables in the first. None where a part of the change has no place in them.
    """
    left = dict(change)
    now = dict(texts)
    for path in now:
        if not left:
            break
        # a keyword belongs to every call of every file, a setting to one place
        local = {k: v for k, v in change.items() if k in left or not (k.startswith("torch.") or k == "env")}
        after, kept = (_yaml if path.suffix in (".yaml", ".yml") else _python)(now[path], local)
        now[path] = after
        left = {k: v for k, v in left.items() if k in kept}
    if left:
        return None
    return [Patch(path=path, before=texts[path], after=now[path]) for path in now if now[path] != texts[path]]


def _python(text: str, change: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    result = edited(text, change)
    return result.source, result.left


def _yaml(text: str, change: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Top-level keys of the trainer's YAML; comments and order stay."""
    left = {}
    for key, value in _for_yaml(change):
        if key not in _YAML_KEYS:
            left[key] = value
            continue
        word = {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value
        line = f'{key}: "{word}"' if word in ("true", "false") else f"{key}: {word}"
        pattern = re.compile(rf"^{key}\s*:[^\n#]*?(?=\s*(#[^\n]*)?$)", re.M)
        if pattern.search(text):
            text = pattern.sub(lambda match, line=line: line, text, count=1)  # type: ignore[misc]
        else:
            text += ("" if text.endswith("\n") or not text else "\n") + line + "\n"
    return text, left


def _for_yaml(change: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in change.items():
        if key == "compile_kwargs" and set(value) == {"dynamic"}:
            yield "dynamic", value["dynamic"]
        else:
            yield key, value


def diffs(data: Mapping[str, Any]) -> dict[str, str]:
    """Edit -> unified diff of the user's own files, for each mechanical remedy that has a place in them."""
    texts = {}
    for path in files_of(data):
        try:
            texts[path] = read(path)
        except (OSError, UnicodeDecodeError):
            continue
    found: dict[str, str] = {}
    for candidate in candidates(data) if texts else ():
        try:
            made = patches(texts, candidate.change)
        except SyntaxError:
            break
        if made:
            found[candidate.edit] = "".join(one.diff() for one in made)
    return found


def files_of(data: Mapping[str, Any], more: Iterable[str | Path] = ()) -> list[Path]:
    """The user's own files of a check: of ``--model FILE.py:build``, ``--config FILE`` or the script of a command,
    and ``more``. Each exists.
    """
    asked = data.get("asked") or {}
    directory = Path(asked.get("directory") or ".")
    found = [directory / name for name in _named(asked.get("arguments") or ())]
    found += [Path(name) for name in more]
    return list(dict.fromkeys(path.resolve() for path in found if path.is_file()))


def _named(arguments: Sequence[str]) -> Iterator[str]:
    """File names among the arguments of a check."""
    divided = arguments.index("--") if "--" in arguments else len(arguments)
    own, command = arguments[:divided], arguments[divided + 1 :]
    for i, word in enumerate(own):
        flag, equals, value = word.partition("=")
        if flag in ("--model", "--config"):
            value = value if equals else (own[i + 1] if i + 1 < len(own) else "")
            path = file_in(value)
            if path:
                yield path
    script = next((word for word in command if word.endswith(".py")), None)
    if script is not None:
        yield script


def file_in(value: str) -> str:
    """``train.py`` of ``train.py:build``; empty for what names no file to patch."""
    path, _, attribute = value.rpartition(":")
    if path.endswith(".py") and attribute.isidentifier():
        return path
    return value if value.endswith((".py", ".yaml", ".yml")) else ""
