"""The CPU as a target: Inductor's own C++ code generation, without a C++ compiler.

Lowering, scheduling and code generation are the genuine ones (they put the guards on shapes). The instruction
set comes from the CPU's feature flags instead of a trial build, which gives the same answer wherever the
flags and the compiler agree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cftdiag.target.codegen import keep_code, never
from cftdiag.target.patches import Patch, applied, clear_caches
from cftdiag.torch_private import points
from cftdiag.torch_private.inductor import config

SETTINGS: Mapping[str, Any] = {
    "force_disable_caches": True,
    "compile_threads": 1,
    "cpp_wrapper": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
}


def patches(on_code: Callable[[Any, str], None] | None = None) -> list[Patch]:
    """What is replaced while a graph is lowered for the CPU."""
    return [
        Patch(point=points.COMPILE_TO_MODULE, new=keep_code(on_code)),
        Patch(point=points.CHECK_BUILD, new=lambda self, code: True),
        Patch(point=points.CPP_BUILD, new=never),
        # code generation asks which compiler it writes for, and would start each candidate to find out
        Patch(point=points.CPP_COMPILER, new=lambda: "g++"),
    ]


@contextlib.contextmanager
def lowering(
    on_code: Callable[[Any, str], None] | None = None, inductor_config: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Active only while a graph is lowered."""
    clear_caches(points.CPU_CACHES)
    try:
        with applied("cpu", patches(on_code)), config.patch({**(inductor_config or {}), **SETTINGS}):
            yield
    finally:
        clear_caches(points.CPU_CACHES)
