"""Compiles generated Triton kernels for an offline device, all their configurations, and reads what they
need. Launches nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from cftdiag.target import cuda, real, sass
from cftdiag.target.devices import Device
from cftdiag.target.records import Kernel
from cftdiag.target.roofline import occupancy
from cftdiag.torch_private.inductor import CachingAutotuner, PyCodeCache, precompile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration:
    """One configuration of a kernel as compiled for the device."""

    settings: Mapping[str, int]
    """Block sizes (``XBLOCK``, ``R0_BLOCK``), ``num_warps``, ``num_stages``."""
    usage: sass.Usage
    shared: int
    """Bytes of shared memory a block."""
    occupancy: float
    """Share of a multiprocessor's warps that can be resident."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """A kernel with all the configurations that autotuning chooses from."""

    arch: str
    aligned: tuple[str, ...]
    """Arguments that Inductor promises to be divisible by 16."""
    unaligned: tuple[str, ...]
    """Pointers and sizes without that promise."""
    fp64_arguments: tuple[str, ...]
    """Arguments in double precision."""
    configurations: tuple[Configuration, ...]


#: (device, hash of the source) -> result, in this process; Triton keeps the cubins on disk besides.
_DONE: dict[tuple[str, str], Compiled] = {}


def compile_all(target: str, kernels: Iterable[Kernel]) -> dict[str, Compiled]:
    """Source of each Triton kernel -> what it needs on ``target`` (``cuda``: the device here); each source is
    compiled once a process.

    Disassembly, which is a tool's start-up time, overlaps with the next compile.
    """
    sources = dict.fromkeys(k.source for k in kernels if k.category != "cpp")
    missing = [s for s in sources if _key(target, s) not in _DONE]
    if missing:
        device: Any = real.compiling() if target == "cuda" else cuda.lowering(target)
        with device as spec, ThreadPoolExecutor(1) as pool:
            started = [(source, *_start(source, pool)) for source in missing]
            for source, tuner, parts in started:
                _DONE[_key(target, source)] = _compiled(tuner, parts, spec)
    return {source: _DONE[_key(target, source)] for source in sources}


def _key(target: str, source: str) -> tuple[str, str]:
    return target, hashlib.sha256(source.encode()).hexdigest()


def _start(
    source: str, pool: ThreadPoolExecutor
) -> tuple[CachingAutotuner, list[tuple[Any, Any, Future[sass.Usage]]]]:
    module = PyCodeCache.load(source)
    tuner = next(value for value in vars(module).values() if isinstance(value, CachingAutotuner))
    parts = []
    for configuration in tuner.configs:
        kernel = precompile(tuner, configuration).kernel
        parts.append((configuration, kernel.metadata, pool.submit(sass.read, kernel.asm["cubin"])))
    return tuner, parts


def _compiled(
    tuner: CachingAutotuner, parts: list[tuple[Any, Any, Future[sass.Usage]]], spec: Device
) -> Compiled:
    signature: Mapping[str, str] = tuner.triton_meta["signature"]
    names = list(signature)
    promised = tuner.triton_meta["configs"][0]
    aligned = tuple(
        names[index[0]]
        for index, facts in promised.items()
        if ["tt.divisibility", 16] in [list(f) for f in facts]
    )
    rest = tuple(n for n in names if n not in aligned and signature[n] != "constexpr")
    configurations = []
    for configuration, metadata, future in parts:
        usage = future.result()
        settings = {
            **configuration.kwargs,
            "num_warps": metadata.num_warps,
            "num_stages": metadata.num_stages,
        }
        shared = max(metadata.shared, usage.static_shared)
        configurations.append(
            Configuration(
                settings=settings,
                usage=usage,
                shared=shared,
                occupancy=occupancy(spec, registers=usage.registers, shared=shared, warps=metadata.num_warps),
            )
        )
    return Compiled(
        arch=spec.arch,
        aligned=aligned,
        unaligned=rest,
        fp64_arguments=tuple(n for n in names if signature[n] in ("fp64", "*fp64")),
        configurations=tuple(configurations),
    )
