"""Checkpoints as directories: written beside and renamed, so that a name without a suffix is always a whole
one. No torch.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STATE = "state.json"
SCHEMA = "trainer.checkpoint/1"
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
    """Fingerprint of the samples and their order (:func:`trainer.data.fingerprint`)."""
    kinds: tuple[str, ...]
    """Why it was written: ``step``, ``epoch``, ``best``, ``signal``, ``end``."""
    best: Best | None
    config: dict[str, Any]


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
    try:
        values = json.loads((path / STATE).read_text(encoding="utf-8"))
        if values.pop("schema") != SCHEMA:
            raise ValueError("it has another format")
        files = dict(values.pop("files"))
        best = values.pop("best")
        state = State(**{**values, "kinds": tuple(values["kinds"]), "best": Best(**best) if best else None})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is not a checkpoint of this trainer: {error}") from error
    for name, size in files.items():
        file = path / name
        found = file.stat().st_size if file.exists() else None
        if found != size:
            raise ValueError(
                f"{path} is damaged: {name} should have {size} bytes, it {'is missing' if found is None else f'has {found}'}"
            )
    return state


def resolve(resume: str, directory: Path, say: Callable[[str], None] = lambda _: None) -> Path | None:
    """The checkpoint that ``resume`` names; ``auto`` is the newest whole one, None when there is none yet.

    Raises ``ValueError`` for a path that is no whole checkpoint. ``say`` is told of newer ones that are
    passed over.
    """
    if resume != "auto":
        path = Path(resume).resolve()
        read_state(path)
        return path
    for path in reversed(_entries(directory)):
        try:
            read_state(path)
        except ValueError as error:
            say(f"passed over: {error}")
        else:
            return path
    return None


def prepare(directory: Path, resumed: Path | None, step: int) -> list[str]:
    """Before training: remove what a crash left half written, and move checkpoints that this run does not
    continue out of its way.

    ``resumed`` is what the run continues from, at ``step``; without one everything in ``directory`` is an
    earlier run's. Returns lines to print.
    """
    told = []
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


def commit(partial: Path, state: State, *, keep: int) -> Path:
    """Give a finished ``step-N.partial`` its final name, point ``last`` and ``best`` to what they are now,
    and remove what is not kept.

    All files are on disk before the name is. One process calls it, after all ranks have written.
    """
    directory, final = partial.parent, partial.with_name(partial.name.removesuffix(PARTIAL))
    files = {
        str(file.relative_to(partial)): file.stat().st_size
        for file in sorted(partial.rglob("*"))
        if file.is_file()
    }
    values = {"schema": SCHEMA, **dataclasses.asdict(state), "files": files}
    with open(partial / STATE, "w", encoding="utf-8") as file:
        json.dump(values, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
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
