"""The devices that a check can lower for without having them. Torch-free.

Sources of the figures, all dense (without sparsity) and for the SXM boards:

* NVIDIA A100 Tensor Core GPU datasheet (80 GB SXM: 2039 GB/s; FP32 19.5, BF16 312, FP64 9.7 TFLOPS) and the Ampere GA100 whitepaper
  (108 SMs, 40 MB of L2, boost clock 1410 MHz).
* NVIDIA H100 Tensor Core GPU datasheet (SXM: 80 GB, 3.35 TB/s; FP32 67, BF16 989.5, FP64 34 TFLOPS) and the Hopper GH100 whitepaper (132 SMs,
  50 MB of L2). Boost clock 1980 MHz follows from 67 TFLOPS / (132 SMs * 128 lanes * 2).
* NVIDIA H200 Tensor Core GPU datasheet (SXM: 141 GB, 4.8 TB/s; arithmetic as the H100, whose GH100 die it has).
* NVIDIA HGX B200 datasheet (per GPU: 180 GB, 8 TB/s; FP32 80, BF16 2250, FP64 40 TFLOPS); 148 SMs and 126 MB of L2 as CUDA reports them. Boost
  clock 1965 MHz.
* Shared memory, registers and threads: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (8.0: 163 KB a block and
  164 KB an SM; 9.0 and 10.0: 227 KB and 228 KB; 64 K registers and 2048 threads an SM everywhere).

Inductor's decisions that put guards on shapes depend on none of the bandwidths or rates; the roofline bound does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

KIB, GIB = 1 << 10, 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """One CUDA device; attribute names are those of ``torch.cuda.get_device_properties()``, sizes in bytes, ``clock_rate`` in kHz."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    L2_cache_size: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    clock_rate: int
    dram_gbps: float
    """Peak memory bandwidth in GB/s (10^9 bytes)."""
    fp32_tflops: float
    """Peak of the CUDA cores in TFLOPS, which is what a Triton kernel without ``tl.dot`` can reach."""
    bf16_tflops: float
    """Peak of the tensor cores, dense, in TFLOPS, for bf16 and fp16 products."""
    fp64_tflops: float
    shared_memory_per_block: int = 48 * KIB
    regs_per_multiprocessor: int = 65536
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = ""  # torch asks every device for it; only AMD's have one

    @property
    def arch(self) -> str:
        """``sm_90``."""
        return f"sm_{self.major}{self.minor}"


DEVICES: Mapping[str, Device] = {
    "a100": Device(
        name="NVIDIA A100-SXM4-80GB",
        major=8,
        minor=0,
        multi_processor_count=108,
        total_memory=80 * GIB,
        L2_cache_size=40 << 20,
        shared_memory_per_block_optin=163 * KIB,
        shared_memory_per_multiprocessor=164 * KIB,
        clock_rate=1410000,
        dram_gbps=2039.0,
        fp32_tflops=19.5,
        bf16_tflops=312.0,
        fp64_tflops=9.7,
    ),
    "h100": Device(
        name="NVIDIA H100 80GB HBM3",
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=80 * GIB,
        L2_cache_size=50 << 20,
        shared_memory_per_block_optin=227 * KIB,
        shared_memory_per_multiprocessor=228 * KIB,
        clock_rate=1980000,
        dram_gbps=3350.0,
        fp32_tflops=67.0,
        bf16_tflops=989.5,
        fp64_tflops=34.0,
    ),
    "h200": Device(
        name="NVIDIA H200",
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=141 * GIB,
        L2_cache_size=50 << 20,
        shared_memory_per_block_optin=227 * KIB,
        shared_memory_per_multiprocessor=228 * KIB,
        clock_rate=1980000,
        dram_gbps=4800.0,
        fp32_tflops=67.0,
        bf16_tflops=989.5,
        fp64_tflops=34.0,
    ),
    "b200": Device(
        name="NVIDIA B200",
        major=10,
        minor=0,
        multi_processor_count=148,
        total_memory=180 * GIB,
        L2_cache_size=126 << 20,
        shared_memory_per_block_optin=227 * KIB,
        shared_memory_per_multiprocessor=228 * KIB,
        clock_rate=1965000,
        dram_gbps=8000.0,
        fp32_tflops=80.0,
        bf16_tflops=2250.0,
        fp64_tflops=40.0,
    ),
}

#: Every name that ``--target`` takes; the CPU has no table of its own.
TARGETS: Mapping[str, Device | None] = {**DEVICES, "cpu": None}


def device(name: str) -> Device | None:
    """The device of a target, None for ``cpu``; ``ValueError`` for an unknown name."""
    if name not in TARGETS:
        raise ValueError(f"unknown target {name!r}; use one of {', '.join(TARGETS)}")
    return TARGETS[name]
