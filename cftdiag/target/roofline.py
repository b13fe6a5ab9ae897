"""Bounds of a kernel on a device: how long it must take at least, and how many of its warps fit on a
multiprocessor. Torch-free.

Roofline after Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures" (CACM 2009); occupancy by the allocation rules of the CUDA Occupancy Calculator (registers in
units of 256 a warp, 1 KB of shared memory a block for the system from compute capability 8.0 on).
"""

from __future__ import annotations

import dataclasses

from cftdiag.target.devices import KIB, Device

_MAX_BLOCKS = 32
_REGISTER_UNIT = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """The lower bound of a kernel's time."""

    microseconds: float
    limited_by: str
    """``memory`` or ``compute``."""
    intensity: float | None
    """FLOPs per byte, None where nothing is moved."""
    attainable_tflops: float
    """What the roofline allows at this intensity."""


def bound(spec: Device, *, flops: int, bytes_moved: int, tensor_cores: bool = False) -> Bound:
    """Roofline bound; ``tensor_cores`` for matrix products and attention in half precision."""
    peak = (spec.bf16_tflops if tensor_cores else spec.fp32_tflops) * 1e12
    bandwidth = spec.dram_gbps * 1e9
    memory, compute = bytes_moved / bandwidth, flops / peak
    intensity = flops / bytes_moved if bytes_moved else None
    return Bound(
        microseconds=max(memory, compute) * 1e6,
        limited_by="memory" if memory >= compute else "compute",
        intensity=intensity,
        attainable_tflops=(peak if intensity is None else min(peak, intensity * bandwidth)) / 1e12,
    )


def ridge(spec: Device, *, tensor_cores: bool = False) -> float:
    """The intensity (FLOPs per byte) from which on arithmetic is the limit."""
    return (spec.bf16_tflops if tensor_cores else spec.fp32_tflops) * 1e3 / spec.dram_gbps


def occupancy(spec: Device, *, registers: int, shared: int, warps: int) -> float:
    """Share of a multiprocessor's warps that can be resident, 0 to 1; ``registers`` per thread, ``shared``
    bytes per block, ``warps`` per block.
    """
    per_warp = -(-registers * spec.warp_size // _REGISTER_UNIT) * _REGISTER_UNIT
    max_warps = spec.max_threads_per_multi_processor // spec.warp_size
    limits = [_MAX_BLOCKS, max_warps // warps]
    if per_warp:
        limits.append(spec.regs_per_multiprocessor // per_warp // warps)
    limits.append(spec.shared_memory_per_multiprocessor // (shared + KIB))
    return min(limits) * warps / max_warps
