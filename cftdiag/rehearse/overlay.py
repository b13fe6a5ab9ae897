"""A second file system for the script's writes: what it writes goes to the scratch folder, what it reads comes
from there first.

Only Python's own file functions are mapped; :mod:`cftdiag.rehearse.confine` stops what goes around them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from typing import Any


class Overlay:
    """Maps absolute paths to ``root`` + path once they are written; ``passing`` directories are left alone."""

    def __init__(self, root: str, passing: Iterable[str]) -> None:
        self.root = os.path.abspath(root)
        self.passing = tuple(os.path.abspath(p).rstrip("/") + "/" for p in (root, *passing))
        self._hidden: set[str] = set()
        """Real paths that the script has removed or replaced."""

    def path(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The absolute path, or None for one that is not mapped (a descriptor, a passing directory)."""
        if isinstance(path, int) or path is None:
            return None
        text = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(text):
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        absolute = os.path.abspath(text)
        return None if (absolute + "/").startswith(self.passing) else absolute

    def above(self, absolute: str) -> str:
        """Where a path lies in the overlay."""
        return self.root + absolute

    def named(self, path: str) -> str:
        """The script's own name of a path that may lie in the overlay."""
        inside = path == self.root or path.startswith(self.root + "/")
        return path[len(self.root) :] or "/" if inside else path

    def hidden(self, absolute: str) -> bool:
        """True when the real file of that name is no longer there for the script."""
        while True:
            if absolute in self._hidden:
                return True
            parent = os.path.dirname(absolute)
            if parent == absolute:
                return False
            absolute = parent

    def read(self, absolute: str) -> str:
        """The path to read from."""
        above = self.above(absolute)
        return above if os.path.lexists(above) or (self._hidden and self.hidden(absolute)) else absolute

    def exists(self, absolute: str) -> bool:
        """Whether the script sees something under that name."""
        return os.path.lexists(self.read(absolute))

    def write(self, absolute: str, *, keep: bool) -> str:
        """The path to write to, its folder made; with ``keep`` the old contents are there."""
        above = self.above(absolute)
        if os.path.lexists(above):
            return above
        self._folder(os.path.dirname(absolute))
        if keep and not self.hidden(absolute) and os.path.isfile(absolute):
            shutil.copyfile(absolute, above)
        return above

    def lift(self, absolute: str) -> str:
        """The path in the overlay, with a copy of what is really there."""
        above = self.above(absolute)
        if self.hidden(absolute) or not os.path.lexists(absolute):
            return above
        self._folder(os.path.dirname(absolute))
        if os.path.isdir(absolute):
            shutil.copytree(absolute, above, dirs_exist_ok=True, symlinks=True)
        elif not os.path.lexists(above):
            shutil.copy2(absolute, above)
        return above

    def make_directory(self, absolute: str) -> str:
        """The directory to make in place of this one; ``FileExistsError`` where the script sees one already."""
        if self.exists(absolute):
            raise FileExistsError(17, "File exists", absolute)
        self._folder(os.path.dirname(absolute))
        return self.above(absolute)

    def remove(self, absolute: str) -> str | None:
        """Hide the real file; the path to remove in the overlay, None where there is nothing to remove."""
        if not self.exists(absolute):
            raise FileNotFoundError(2, "No such file or directory", absolute)
        if os.path.lexists(absolute):
            self._hidden.add(absolute)
        above = self.above(absolute)
        return above if os.path.lexists(above) else None

    def hide(self, absolute: str) -> None:
        """Let the real file of that name be gone."""
        if os.path.lexists(absolute):
            self._hidden.add(absolute)

    def names(self, absolute: str) -> Iterator[str]:
        """Names that the script sees in a directory; ``OSError`` where it sees none."""
        above, hidden = self.above(absolute), self.hidden(absolute)
        if not os.path.isdir(above):
            # also where there is no such directory at all: the error is the one that the script expects
            return iter(os.listdir(above if hidden else absolute))
        below = [] if hidden or not os.path.isdir(absolute) else os.listdir(absolute)
        kept = (name for name in below if os.path.join(absolute, name) not in self._hidden)
        return iter(dict.fromkeys([*os.listdir(above), *kept]))

    def written(self) -> list[str]:
        """Absolute paths of the files that the script has written, in order of their names."""
        found = []
        for folder, _, files in os.walk(self.root):
            found += [os.path.join(folder, name)[len(self.root) :] for name in files]
        return sorted(found)

    def _folder(self, absolute: str) -> None:
        """Make a directory in the overlay if the script sees it; a missing one is left to fail as it would."""
        above = self.above(absolute)
        if not os.path.isdir(above) and (absolute == "/" or self.exists(absolute)):
            with contextlib.suppress(FileExistsError):
                os.makedirs(above)
