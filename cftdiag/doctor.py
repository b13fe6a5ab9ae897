"""What works on this machine and with this torch: versions, devices, compilers, and a self-test that provokes
what the check must see.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from typing import Any

from cftdiag import self_test
from cftdiag.error_text import one_line
from cftdiag.self_test import Examined
from cftdiag.torch_private import table

SCHEMA = "cftdiag.doctor/1"

#: Oldest torch whose hooks are known.
MIN_TORCH = (2, 11)

_PACKAGES = ("torch", "transformers", "triton", "peft", "depyf", "tlparse", "rich", "click")


def examine() -> dict[str, Any]:
    """The state of this environment, as a JSON-ready dict of schema ``cftdiag.doctor/1``.

    ``works`` says whether the check can run here; ``problems`` are the reasons why not, ``degraded`` what
    else is missing and what it costs. ``depth`` is the deepest one whose private names this torch has, null for
    none; ``private_names`` has a row for each name. The self-test compiles for real and takes a few seconds.
    """
    problems: list[str] = []
    degraded: list[str] = []
    versions = {name: _version(name) for name in _PACKAGES}
    problems += _version_problems(versions)
    torch_facts = _torch_facts(problems) if not problems else {}
    compilers = {name: _compiler(name) for name in ("g++", "clang++", "gcc")}
    examined = _self_test(problems) if not problems else Examined((), ())
    problems += [f"self-test {t.name}: {t.detail or 'failed'}" for t in examined.checks if not t.ok]
    broken = {row.part for row in examined.names if row.broken} | {
        t.part for t in examined.checks if not t.ok
    }
    depth = table.depth_available(broken) if examined.names else None
    for row in examined.names:
        if not row.ok:
            fatal = row.broken and row.part in table.NEEDED_PARTS
            (problems if fatal else degraded).append(f"{row.part}: {row.detail}")
    if not any(compilers[name] for name in ("g++", "clang++")):
        degraded.append("no C++ compiler: --compile-backend inductor cannot build for this CPU; install g++")
    if versions["triton"] is None:
        degraded.append("no triton: Inductor cannot lower for a GPU here; on Linux install cftdiag[target]")
    if sys.platform != "linux":
        degraded.append(f"{sys.platform} is not tested; Linux is")
    return {
        "schema": SCHEMA,
        "works": not problems,
        "problems": problems,
        "degraded": degraded,
        "versions": {"python": platform.python_version(), **versions},
        "platform": {
            "system": platform.platform(),
            "machine": platform.machine(),
            "cpus": _cpus(),
            "memory_gb": _memory_gb(),
        },
        "torch": torch_facts,
        "compilers": compilers,
        "depth": depth,
        "private_names": [dataclasses.asdict(row) for row in examined.names],
        "self_test": [dataclasses.asdict(t) for t in examined.checks],
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_problems(versions: dict[str, str | None]) -> list[str]:
    problems = []
    torch = versions["torch"]
    wanted = ".".join(map(str, MIN_TORCH))
    if torch is None:
        problems.append(f"torch is not installed; install torch >= {wanted}")
    elif tuple(map(int, re.findall(r"\d+", torch)[:2])) < MIN_TORCH:
        problems.append(f"torch {torch} is too old; install torch >= {wanted}")
    if versions["transformers"] is None:
        problems.append("transformers is not installed; install transformers >= 5")
    return problems


def _torch_facts(problems: list[str]) -> dict[str, Any]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of the wheel is missing
        problems.append(f"torch cannot be imported ({error}); install it again")
        return {}
    devices = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    return {
        "cuda_build": torch.version.cuda,
        "hip_build": torch.version.hip,
        "cuda_devices": devices,
        "threads": torch.get_num_threads(),
        "distributed": torch.distributed.is_available(),
    }


def _self_test(problems: list[str]) -> Examined:
    try:
        return self_test.run_selftest()
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in the self-test is what the doctor is asked to tell
        problems.append(f"the self-test ended with {one_line(error, 300)}")
        return Examined((), ())


def _compiler(name: str) -> str | None:
    path = shutil.which(name)
    if path is None:
        return None
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError, AttributeError):
        return None
