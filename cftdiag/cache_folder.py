"""What lies in a directory of compiled code (TORCHINDUCTOR_CACHE_DIR), by kind. Nothing in it is opened: its
files hold pickles and code. Torch-free.
"""

from __future__ import annotations

import dataclasses
import getpass
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Folder of torch's -> (kind, how deep below it an entry's folder is).
_KINDS = {
    "fxgraph": ("FX graphs", 2),
    "aotautograd": ("AOTAutograd", 1),
    "triton": ("Triton kernels", 2),
    "best_config": ("autotuning", 1),
}
_CODE = "generated code"
#: Notes of ours about the keys (:mod:`cftdiag.cache_keys`).
KEYS = "cftdiag-keys.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of entries. Times are Unix seconds of the files' last change."""

    kind: str
    entries: int
    files: int
    size: int
    oldest: float
    newest: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A whole directory."""

    path: str
    kinds: tuple[Kind, ...]
    foreign: tuple[str, ...]
    """Files and folders that others could have written: whoever can put an entry here runs code here."""


def default() -> Path:
    """The directory that torch takes in this environment."""
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if given:
        return Path(given).absolute()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid_{os.getuid()}"
    return Path(tempfile.gettempdir()) / f"torchinductor_{re.sub(r'[^A-Za-z0-9._-]', '_', user)}"


def read(path: Path) -> Folder:
    """Count what is there. Raises ``ValueError`` where there is no such directory."""
    if not path.is_dir():
        raise ValueError(f"{path}: no such directory; nothing was compiled with this cache yet")
    rows: dict[str, list[tuple[str, os.stat_result]]] = {}
    foreign = []
    for file, status in _walk(path):
        if _foreign(status):
            foreign.append(str(file))
        parts = file.relative_to(path).parts
        if not stat.S_ISREG(status.st_mode) or parts[0].startswith(Path(KEYS).stem):
            continue
        kind, depth = _KINDS.get(parts[0], (_CODE, len(parts) - 1))
        rows.setdefault(kind, []).append(("/".join(parts[: depth + 1]), status))
    kinds = [
        Kind(
            kind=kind,
            entries=len({entry for entry, _ in found}),
            files=len(found),
            size=sum(status.st_size for _, status in found),
            oldest=min(status.st_mtime for _, status in found),
            newest=max(status.st_mtime for _, status in found),
        )
        for kind, found in sorted(rows.items())
    ]
    return Folder(path=str(path), kinds=tuple(kinds), foreign=tuple(sorted(foreign)))


def _walk(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file and folder, the first included; what vanishes meanwhile is left out, and no link is followed."""
    yield path, path.stat()
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            item = Path(folder) / name
            try:
                yield item, item.lstat()
            except OSError:
                continue


def _foreign(status: os.stat_result) -> bool:
    if stat.S_ISLNK(status.st_mode):
        return False
    return status.st_uid not in (os.geteuid(), 0) or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
