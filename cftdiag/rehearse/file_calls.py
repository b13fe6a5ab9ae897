"""Python's file functions, mapped onto the overlay."""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import threading
from collections.abc import Callable
from typing import Any

from cftdiag.rehearse.overlay import Overlay

_inside = threading.local()

#: Functions of ``os`` that only look at their first argument.
_LOOKING = ("stat", "lstat", "access", "readlink", "statvfs", "chdir", "getxattr", "listxattr")
#: Functions of ``os`` that change what their first argument names.
_CHANGING = ("truncate", "utime", "chmod", "chown", "setxattr", "removexattr")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(overlay: Overlay) -> None:
    """Map ``open`` and the functions of ``os`` and ``shutil`` for the rest of this process."""
    for name in _LOOKING:
        _replace(os, name, lambda path, real, *a, **k: real(overlay.read(path), *a, **k), overlay)
    for name in _CHANGING:
        _replace(os, name, lambda path, real, *a, **k: real(overlay.write(path, keep=True), *a, **k), overlay)
    _replace(os, "open", functools.partial(_os_open, overlay), overlay)
    _replace(os, "mkdir", lambda path, real, *a, **k: real(overlay.make_directory(path), *a, **k), overlay)
    for name in ("remove", "unlink", "rmdir"):
        _replace(os, name, functools.partial(_remove, overlay), overlay)
    _replace(shutil, "rmtree", functools.partial(_rmtree, overlay), overlay)
    for name in ("rename", "replace", "link", "symlink"):
        _replace_pair(overlay, name)
    _replace_listing(overlay)
    _replace_open(overlay)
    _replace_directory(overlay)


def _replace_directory(overlay: Overlay) -> None:
    """The working directory has the name that the script knows, also where it lies in the overlay."""
    real = os.getcwd

    @functools.wraps(real)
    def getcwd() -> str:
        return overlay.named(real())

    os.getcwd = getcwd


def _replace(module: Any, name: str, mapped: Callable[..., Any], overlay: Overlay) -> None:
    real = getattr(module, name, None)
    if real is None:
        return

    @functools.wraps(real)
    def call(path: Any = ".", *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
        given = {} if dir_fd is None else {"dir_fd": dir_fd}
        if getattr(_inside, "yes", False):
            return real(path, *args, **given, **kwargs)
        _inside.yes = True
        try:
            absolute = overlay.path(path, dir_fd)
            if absolute is None:
                return real(path, *args, **given, **kwargs)
            return mapped(absolute, real, *args, **kwargs)
        finally:
            _inside.yes = False

    # shutil asks these sets whether descriptors and symlinks are understood
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if real in known:
            known.add(call)
    setattr(module, name, call)


def _os_open(overlay: Overlay, path: str, real: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
    if flags & _WRITES:
        if flags & os.O_EXCL and flags & os.O_CREAT and overlay.exists(path):
            raise FileExistsError(17, "File exists", path)
        if not flags & os.O_CREAT and not overlay.exists(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(overlay.write(path, keep=not flags & os.O_TRUNC), flags, *args, **kwargs)
    return real(overlay.read(path), flags, *args, **kwargs)


def _remove(overlay: Overlay, path: str, real: Any) -> None:
    above = overlay.remove(path)
    if above is not None:
        real(above)


def _rmtree(overlay: Overlay, path: str, real: Any, *args: Any, **kwargs: Any) -> None:
    if not overlay.exists(path):
        real(overlay.above(path), *args, **kwargs)  # fails, or not, as the arguments say
        return
    above = overlay.remove(path)
    if above is not None:
        real(above, *args, **kwargs)


def _replace_pair(overlay: Overlay, name: str) -> None:
    real = getattr(os, name)

    @functools.wraps(real)
    def call(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "yes", False):
            return real(source, target, *args, **kwargs)
        _inside.yes = True
        try:
            old = overlay.path(source, kwargs.pop("src_dir_fd", None)) if name != "symlink" else None
            new = overlay.path(target, kwargs.pop("dst_dir_fd", kwargs.pop("dir_fd", None)))
            if name in ("rename", "replace"):
                return _move(overlay, real, source, target, old, new)
            at = target if new is None else overlay.write(new, keep=False)
            return real(source if old is None else overlay.read(old), at, *args, **kwargs)
        finally:
            _inside.yes = False

    setattr(os, name, call)


def _move(overlay: Overlay, real: Any, source: Any, target: Any, old: str | None, new: str | None) -> None:
    if old is not None and not overlay.exists(old):
        raise FileNotFoundError(2, "No such file or directory", old, None, os.fspath(target))
    lifted = source if old is None else overlay.lift(old)
    if new is None:
        real(lifted, target)
    else:
        at = overlay.above(new)
        if not os.path.lexists(at):
            overlay.write(new, keep=False)
        real(lifted, at)
        if os.path.isdir(at):
            overlay.hide(new)
    if old is not None:
        overlay.hide(old)


class _Entry:
    """What ``os.scandir`` gives for a name that may lie in two places."""

    def __init__(self, folder: str, name: str, overlay: Overlay) -> None:
        self.name, self.path, self._overlay = name, os.path.join(folder, name), overlay

    def __fspath__(self) -> str:
        return self.path

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)


class _Entries(list[_Entry]):
    """``os.scandir``'s iterator, which is a context manager too."""

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> _Entry:
        if not self:
            raise StopIteration
        return self.pop(0)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.clear()


def _replace_listing(overlay: Overlay) -> None:
    listdir, scandir = os.listdir, os.scandir

    def names(path: Any) -> list[str] | None:
        """Names of a directory that the script has changed; None for any other."""
        absolute = overlay.path(path)
        if absolute is None or not (os.path.lexists(overlay.above(absolute)) or overlay.hidden(absolute)):
            return None
        return list(overlay.names(absolute))

    def guarded(path: Any, real: Any, made: Callable[[list[str]], Any]) -> Any:
        if getattr(_inside, "yes", False):
            return real(path)
        _inside.yes = True
        try:
            found = names(path)
            return real(path) if found is None else made(found)
        finally:
            _inside.yes = False

    def list_directory(path: Any = ".") -> Any:
        return guarded(path, listdir, lambda found: found)

    def scan(path: Any = ".") -> Any:
        folder = os.fsdecode(path) if not isinstance(path, int) else ""
        return guarded(path, scandir, lambda found: _Entries(_Entry(folder, n, overlay) for n in found))

    for known in (os.supports_fd,):
        known.update({list_directory, scan} if listdir in known else set())
    os.listdir, os.scandir = list_directory, scan  # type: ignore[assignment]


def _replace_open(overlay: Overlay) -> None:
    real = io.open

    @functools.wraps(real)
    def call(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int) or getattr(_inside, "yes", False):
            return real(file, mode, *args, **kwargs)
        _inside.yes = True
        try:
            absolute = overlay.path(file)
            if absolute is not None:
                if "x" in mode and overlay.exists(absolute):
                    raise FileExistsError(17, "File exists", absolute)
                if "r" in mode and "+" not in mode:
                    file = overlay.read(absolute)
                elif "r" in mode and not overlay.exists(absolute):
                    raise FileNotFoundError(2, "No such file or directory", absolute)
                else:
                    file = overlay.write(absolute, keep="w" not in mode)
        finally:
            _inside.yes = False
        return real(file, mode, *args, **kwargs)

    builtins.open = io.open = call  # type: ignore[assignment]
