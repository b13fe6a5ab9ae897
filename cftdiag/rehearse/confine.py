"""Where a rehearsed process may write at all: Linux's Landlock, which also holds for native code and for the
programs that a script starts.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38
#: Rights that change a file system (linux/landlock.h): write, remove, make, refer, truncate. Reading and
#: executing stay free.
_WRITING = 0x7FF2
#: The first version that lets files move between allowed directories.
_LEAST = 3


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def available() -> bool:
    """Whether this kernel can confine a process."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)) >= _LEAST
    except (OSError, AttributeError):
        return False


def confine(directories: Sequence[str]) -> bool:
    """Let this process, and all that it starts, write beneath these directories only; there is no way back.

    False, and nothing changed, where the kernel has no Landlock.
    """
    if not available():
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    ruleset = _Ruleset(_WRITING)
    handle = libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(ctypes.sizeof(ruleset)), 0)
    if handle < 0:
        return False
    try:
        for directory in directories:
            _allow(libc, handle, directory)
        return libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and libc.syscall(_RESTRICT_SELF, handle, 0) == 0
    finally:
        os.close(handle)


def _allow(libc: ctypes.CDLL, handle: int, directory: str) -> None:
    try:
        fd = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # nothing to write to
    try:
        rule = _PathBeneath(_WRITING, fd)
        libc.syscall(_ADD_RULE, handle, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(fd)
