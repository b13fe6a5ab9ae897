"""The CPU as a target: Inductor's own C++ code generation, without a C++ compiler.

Lowering, scheduling and code generation are the genuine ones (they put the guards on shapes). The instruction
set comes from the CPU's feature flags instead of a trial build, which gives the same answer wherever the
flags and the compiler agree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch._inductor import config

from cftdiag.target.codegen import keep_code, never
from cftdiag.target.patches import Patch, applied, clear_caches

SETTINGS: Mapping[str, Any] = {
    "force_disable_caches": True,
    "compile_threads": 1,
    "cpp_wrapper": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
}

# answers that hold only while nothing is built
_CACHES = (
    "torch._inductor.cpu_vec_isa:valid_vec_isa_list",
    *(
        f"torch._inductor.cpu_vec_isa:{isa}.__bool__"
        for isa in ("VecISA", "VecAVX512", "VecAVX512VNNI", "VecAMX", "VecAVX2", "VecNEON", "VecSVE")
    ),
    "torch._inductor.cpp_builder:is_gcc",
    "torch._inductor.cpp_builder:is_clang",
    "torch._inductor.codecache:CacheBase.get_system",
)


def patches(on_code: Callable[[Any, str], None] | None = None) -> list[Patch]:
    """What is replaced while a graph is lowered for the CPU."""
    return [
        Patch(
            point="torch._inductor.graph:GraphLowering._compile_to_module",
            new=keep_code(on_code),
            parameters=("self",),
        ),
        Patch(
            point="torch._inductor.cpu_vec_isa:VecISA.check_build",
            new=lambda self, code: True,
            parameters=("self", "code"),
        ),
        Patch(point="torch._inductor.cpp_builder:CppBuilder.build", new=never),
        # code generation asks which compiler it writes for, and would start each candidate to find out
        Patch(point="torch._inductor.cpp_builder:get_cpp_compiler", new=lambda: "g++"),
    ]


@contextlib.contextmanager
def lowering(
    on_code: Callable[[Any, str], None] | None = None, inductor_config: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Active only while a graph is lowered."""
    clear_caches(_CACHES)
    try:
        with applied("cpu", patches(on_code)), config.patch({**(inductor_config or {}), **SETTINGS}):
            yield
    finally:
        clear_caches(_CACHES)
