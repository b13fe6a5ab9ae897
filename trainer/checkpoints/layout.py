"""Checkpoints as directories: written beside and renamed, so that a name without a suffix is always a whole
one. No torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

STATE = "state.json"
SCHEMA = "trainer.checkpoint/2"
SUM = "sha256"
PARTIAL = ".partial"
"""Suffix of what is being written or removed; left over only by a crash."""
HF = "hf"
"""Config and tokenizer inside of a checkpoint, so that it can be exported by itself."""
PLAN = "compile_plan.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """The step with the lowest validation loss so far."""

    step: int
    loss: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Where training stood: all that is not a tensor."""

    step: int
    tokens: int
    world: int
    """Ranks that wrote it."""
    ranks: dict[str, int]
    """Frozen directions of each OSFT target, so that resuming decomposes nothing again."""
    data: str
    """Digest of the training samples (:attr:`trainer.records.Records.digest`)."""
    kinds: tuple[str, ...]
    """Why it was written: ``step``, ``epoch``, ``best``, ``signal``, ``end``."""
    best: Best | None
    config: dict[str, Any]
    validation: str | None = None
    """Digest of the validation set."""


def step_path(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return directory / f"step-{step:08d}"


def read_state(path: Path) -> State:
    """The state of a checkpoint. Raises ``ValueError`` when ``path`` is not a whole one, and says what it
    looks like instead.
    """
    if path.name.endswith(PARTIAL):
        raise ValueError(f"{path} is a checkpoint whose writing was cut short; give a whole one")
    if not path.is_dir():
        raise ValueError(
            f"{path} is not a directory; a checkpoint is a directory named step-NNNNNNNN, or the link best or last to one"
        )
    if not (path / STATE).exists() and (inside := _entries(path) or _entries(path / "checkpoints")):
        raise ValueError(f"{path} holds checkpoints but is none; give one of them, such as {inside[-1]}")
    values = _read_values(path)
    try:
        best = values["best"]
        fields = {field.name: values[field.name] for field in dataclasses.fields(State)}
        fields |= {"kinds": tuple(values["kinds"]), "best": Best(**best) if best else None}
        state = State(**fields)
        sizes = {name: file["bytes"] for name, file in values["files"].items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is not a checkpoint of this trainer: it lacks {error}") from error
    for name, size in sizes.items():
        file = path / name
        found = file.stat().st_size if file.exists() else None
        if found != size:
            raise ValueError(
                f"{path} is damaged: {name} should have {size} bytes, it {'is missing' if found is None else f'has {found}'}"
            )
    return state


def _read_values(path: Path) -> dict[str, Any]:
    try:
        values = json.loads((path / STATE).read_text(encoding="utf-8"))
        schema = values.pop("schema")
        if schema != SCHEMA:
            raise ValueError(f"its format is {schema}, not {SCHEMA}")
        wanted = values.pop(SUM)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is not a checkpoint of this trainer: {error}") from error
    if _sum_of_values(values) != wanted:
        raise ValueError(f"{path} is damaged: {STATE} is not what was written")
    return values


def damage(path: Path, part: int = 0, parts: int = 1) -> str | None:
    """What is wrong with the contents of a checkpoint's files, None when each is what was written; looks at
    every ``parts``-th file, from number ``part`` on, so that ranks share the reading.
    """
    try:
        files = _read_values(path)["files"]
        # The largest first: shared evenly.
        order = sorted(files, key=lambda name: (-files[name]["bytes"], name))
        for name in order[part::parts]:
            if sum_of(path / name) != files[name][SUM]:
                return f"{path} is damaged: the contents of {name} are not what was written"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def sum_of(path: Path) -> str:
    """Checksum of a file. Raises ``OSError`` naming it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, SUM).hexdigest()


def _sum_of_values(values: Mapping[str, Any]) -> str:
    return hashlib.new(SUM, json.dumps(values, sort_keys=True).encode()).hexdigest()


def candidates(resume: str, directory: Path) -> list[Path]:
    """What ``resume`` may mean, absolute; the first that is whole is taken: a path, or with ``auto`` all of
    ``directory``, the newest first.
    """
    found = [Path(resume)] if resume != "auto" else list(reversed(_entries(directory)))
    return [path.resolve() for path in found]


def first_whole(
    paths: Sequence[Path],
    say: Callable[[str], None] | None,
    problem: Callable[[Path], str | None] | None = None,
) -> Path | None:
    """The first of ``paths`` with which nothing is wrong, None when there is none. ``say`` is told of those
    that are passed over; without it the first problem is raised as ``ValueError``. ``problem`` says what is
    wrong with one.
    """
    for path in paths:
        text = (problem or problem_of)(path)
        if text is None:
            return path
        if say is None:
            raise ValueError(text)
        say(f"passed over: {text}")
    return None


def problem_of(path: Path) -> str | None:
    """What is wrong with a checkpoint and its contents, None when it is whole."""
    try:
        read_state(path)
    except (ValueError, OSError) as error:
        return str(error)
    return damage(path)


def prepare(directory: Path, resumed: Path | None, step: int) -> list[str]:
    """Before training: remove what a crash left half written, and move checkpoints that this run does not
    continue out of its way.

    ``resumed`` is what the run continues from, at ``step``; without one everything in ``directory`` is an
    earlier run's. Returns lines to print. Raises ``ValueError`` for what would make every save fail.
    """
    told = []
    links = [link for link in (directory / "best", directory / "last") if not link.is_symlink()]
    for place in links if directory.is_dir() else [directory]:
        if place.exists():
            raise ValueError(f"{place} is in the way of the checkpoints; move it away")
    for left in sorted(directory.glob(f"step-*{PARTIAL}")):
        shutil.rmtree(left, ignore_errors=True)
        told.append(f"removed {left}, which an earlier run did not finish")
    if resumed is None or resumed.parent != directory.resolve():
        others = _entries(directory)
    else:
        others = [path for path in _entries(directory) if path.resolve() != resumed and _step(path) > step]
    if others:
        number = 1
        while (aside := directory.with_name(f"{directory.name}.{number}")).exists():
            number += 1
        aside.mkdir()
        for path in others:
            path.rename(aside / path.name)
        told.append(f"{len(others)} checkpoints that this run does not continue are now in {aside}")
    for link in (directory / "best", directory / "last"):
        if link.is_symlink() and not link.exists():
            link.unlink()
    return told


def commit(partial: Path, state: State, *, keep: int, sums: Mapping[str, str] | None = None) -> Path:
    """Give a finished ``step-N.partial`` its final name, point ``last`` and ``best`` to what they are now,
    and remove what is not kept.

    ``sums`` are the checksums of files that are known already. All files are on disk before the name is. One
    process calls it, after all ranks have written.
    """
    sums = sums or {}
    directory, final = partial.parent, partial.with_name(partial.name.removesuffix(PARTIAL))
    files = {}
    for file in sorted(partial.rglob("*")):
        if file.is_file() and file != partial / STATE:
            name = file.relative_to(partial).as_posix()
            files[name] = {"bytes": file.stat().st_size, SUM: sums.get(name) or sum_of(file)}
    # As they are read: tuples become lists.
    values = json.loads(json.dumps({**dataclasses.asdict(state), "files": files}))
    with open(partial / STATE, "w", encoding="utf-8") as out:
        json.dump({"schema": SCHEMA, SUM: _sum_of_values(values), **values}, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    for folder in (partial / HF, partial):
        _sync(folder)
    if final.exists():
        _remove(final)
    partial.rename(final)
    _sync(directory)
    _point(directory / "last", final)
    if state.best is not None and (best := step_path(directory, state.best.step)).exists():
        _point(directory / "best", best)
    _rotate(directory, keep)
    return final


def copy_assets(assets: Path, partial: Path) -> None:
    """Config, tokenizer and compile plan into a checkpoint, on disk."""
    for file in assets.rglob("*"):
        if file.is_file():
            copy = partial / file.relative_to(assets)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)
            _sync(copy)


def truncate_metrics(path: Path, step: int) -> None:
    """Cut a ``metrics.jsonl`` after the line of ``step``, so that a run that continues from there tells each
    step once.

    Lines are in order of their steps; a line that a crash cut in two is the last.
    """
    if not path.exists():
        return
    kept = 0
    with open(path, "rb") as file:
        for line in file:
            try:
                if json.loads(line)["step"] > step:
                    break
            except (ValueError, KeyError, TypeError):
                break
            kept += len(line)
    os.truncate(path, kept)


def _rotate(directory: Path, keep: int) -> None:
    """Of the checkpoints that only their number keeps, the newest ``keep`` stay; one of an epoch and the best
    one stay anyway.
    """
    best = (directory / "best").resolve() if (directory / "best").is_symlink() else None
    for path in _entries(directory)[:-keep]:
        if path.resolve() != best and "epoch" not in _kinds(path):
            _remove(path)


def _kinds(path: Path) -> Sequence[str]:
    try:
        return json.loads((path / STATE).read_text(encoding="utf-8"))["kinds"]
    except (OSError, ValueError, KeyError):
        return ()


def _entries(directory: Path) -> list[Path]:
    """Everything named as a checkpoint, oldest first; a copy under a name of the user's own is none of ours."""
    return sorted(
        path
        for path in directory.glob("step-*")
        if path.name.removeprefix("step-").isdecimal() and (path / STATE).exists()
    )


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _remove(path: Path) -> None:
    # Renamed first: a removal that is cut short must not leave what looks whole.
    going = path.with_name(path.name + PARTIAL)
    shutil.rmtree(going, ignore_errors=True)
    path.rename(going)
    shutil.rmtree(going)


def _point(link: Path, target: Path) -> None:
    beside = link.with_name(link.name + PARTIAL)
    beside.unlink(missing_ok=True)
    beside.symlink_to(target.name)
    beside.replace(link)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
