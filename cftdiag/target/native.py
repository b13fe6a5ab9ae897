"""Builds, checks and loads ``guard.cpp`` once per torch build; `switched_on` is the only way to use it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("guard.cpp")
_TABLE = "_ZTVN2at18CUDAHooksInterfaceE"
_depth = 0


class StubUnavailable(RuntimeError):
    """The stub cannot be used with this torch; one line, what is wrong and what would help."""


def cache_folder() -> Path:
    """Per-user folder of the built stub: ``$CFTDIAG_CACHE_DIR``, else ``$XDG_CACHE_HOME/cftdiag``, else
    ``~/.cache/cftdiag``.
    """
    chosen = os.environ.get("CFTDIAG_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cftdiag"


def build_key() -> str:
    """Names one torch build and one version of the source: its version, git revision, CUDA release and C++
    library flavour.
    """
    parts = (
        torch.__version__,
        str(torch.version.git_version),
        str(torch.version.cuda),
        str(torch.compiled_with_cxx11_abi()),
    )
    return hashlib.sha256("\n".join((*parts, platform.machine(), SOURCE.read_text())).encode()).hexdigest()[
        :16
    ]


def build(target: Path) -> None:
    """Compile the stub against this torch's own headers."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise StubUnavailable(
            "no C++ compiler (g++ or clang++) to build the device stub with; install one, or use --target cpu"
        )
    root = Path(torch.__file__).parent
    command = [
        compiler, "-std=c++20", "-O1", "-shared", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include", str(SOURCE), f"-L{root}/lib", "-lc10", "-ltorch_cpu", "-o", str(target),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StubUnavailable(f"the device stub could not be compiled ({error})") from error
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise StubUnavailable(
            f"the device stub does not compile against torch {torch.__version__} ({first.strip()})"
        )


def table_size(library: Path) -> int | None:
    """Entries of the interface's virtual table in a shared library by its symbol table (two header words left
    out), None where unknown.
    """
    tool = shutil.which("readelf")
    if tool is None or not library.exists():
        return None
    listing = subprocess.run([tool, "--dyn-syms", "-W", str(library)], capture_output=True, text=True).stdout
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) >= 8 and re.sub(r"@.*", "", fields[7]) == _TABLE and fields[6] != "UND":
            return int(fields[2], 0) // ctypes.sizeof(ctypes.c_void_p) - 2
    return None


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded stub, built on first use under a lock; raises :class:`StubUnavailable`."""
    if sys.platform != "linux":
        raise StubUnavailable("the device stub needs Linux; use --target cpu")
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"guard-{build_key()}.so"
        with open(folder / "guard.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    made = Path(scratch) / path.name
                    build(made)
                    made.rename(path)  # whole or not at all
    except OSError as error:
        raise StubUnavailable(
            f"no place for the device stub ({error}); set CFTDIAG_CACHE_DIR to a writable folder"
        ) from error
    loaded = ctypes.CDLL(str(path))
    loaded.interface_slots.restype = ctypes.c_size_t
    check_layout(loaded)
    return loaded


def check_layout(loaded: ctypes.CDLL) -> None:
    """Refuse a torch whose interface differs from the headers that the stub was compiled against."""
    slots = int(loaded.interface_slots())
    core = table_size(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
    if core is not None and core != slots:
        raise StubUnavailable(
            f"torch {torch.__version__} has {core} CUDA hooks, its headers say {slots}; reinstall torch, or use --target cpu"
        )


@contextlib.contextmanager
def switched_on() -> Iterator[None]:
    """Inside the block, tracing sees a CUDA device that nothing can be launched on. Nestable."""
    global _depth
    if library().fake_cuda(1):
        raise StubUnavailable(
            f"torch {torch.__version__} has CUDA hooks of an unknown layout; nothing was changed; use --target cpu"
        )
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if not _depth:
            library().fake_cuda(0)
