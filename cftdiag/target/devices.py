"""The devices that a check can lower for without having them. Torch-free.

Sources of the figures, all dense (without sparsity) and for the SXM boards. Vendor's own:

* A100: NVIDIA A100 Tensor Core GPU datasheet (80 GB SXM: 2039 GB/s; FP32 19.5, BF16 312, FP64 9.7 TFLOPS);
  NVIDIA A100 Tensor Core GPU Architecture
  whitepaper (GA100: 108 SMs, 40 MB of L2, boost clock 1410 MHz).
* H100: NVIDIA H100 Tensor Core GPU datasheet (SXM: 80 GB, 3.35 TB/s; FP32 67, BF16 989.5, FP64 34 TFLOPS);
  NVIDIA H100 Tensor Core GPU
  Architecture whitepaper (GH100: 132 SMs, 50 MB of L2).
* H200: NVIDIA H200 Tensor Core GPU datasheet (SXM: 141 GB, 4.8 TB/s; arithmetic as the H100, whose GH100 die
  it has).
* B200: NVIDIA Blackwell datasheet, HGX B200, individual GPU (180 GB, 7.7 TB/s; FP32 75, BF16 2250 = 4500 with
  sparsity / 2, FP64 37 TFLOPS; earlier
  editions said 8 TB/s, 80 and 40); NVIDIA Blackwell Tuning Guide, section 1.4.2.2 (126 MB of L2) and 1.4.2.3 (228 KB of shared memory an SM).
* Shared memory, registers and threads: CUDA C++ Programming Guide, "Technical Specifications per Compute
  Capability" (8.0: 163 KB a block and
  164 KB an SM; 9.0 and 10.0: 227 KB and 228 KB; 64 K registers and 2048 threads an SM everywhere).

Secondary:

* Memory and L2 of the H200 (143156 MiB, 60 MB) and memory and SMs of the B200 (182642 MiB, 148) as
  ``torch.cuda.get_device_properties()`` prints
  them in published logs of such machines; `make gpu` would show another value.
* Boost clocks of the H100, H200 and B200 (1980 MHz) follow from FP32 TFLOPS / (SMs * 128 lanes * 2).

Inductor's decisions that put guards on shapes depend on none of the bandwidths or rates; the roofline bound
does.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """One CUDA device; attribute names are those of ``torch.cuda.get_device_properties()``, sizes in bytes,
    ``clock_rate`` in kHz.
    """

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
        L2_cache_size=40 * MIB,
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
        L2_cache_size=50 * MIB,
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
        total_memory=143156 * MIB,
        L2_cache_size=60 * MIB,
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
        total_memory=182642 * MIB,
        L2_cache_size=126 * MIB,
        shared_memory_per_block_optin=227 * KIB,
        shared_memory_per_multiprocessor=228 * KIB,
        clock_rate=1980000,
        dram_gbps=7700.0,
        fp32_tflops=75.0,
        bf16_tflops=2250.0,
        fp64_tflops=37.0,
    ),
}

#: Every name that ``--target`` takes; the CPU has no table of its own.
TARGETS: Mapping[str, Device | None] = {**DEVICES, "cpu": None}


def device(name: str) -> Device | None:
    """The device of a target, None for ``cpu``; ``ValueError`` for an unknown name."""
    if name not in TARGETS:
        raise ValueError(f"unknown target {name!r}; use one of {', '.join(TARGETS)}")
    return TARGETS[name]


def present(driver: Path = Path("/proc/driver/nvidia/gpus")) -> str | None:
    """Name of the first GPU of this machine, where it is a target that can be lowered for here; None otherwise.

    Asks the driver's files (``driver``) and neither torch nor the device. Boards with other figures than those
    above (PCIe, NVL) are no target, and without Triton nothing is lowered.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or importlib.util.find_spec("triton") is None:
        return None
    for file in sorted(driver.glob("*/information")):
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        model = re.search(r"^Model:\s*(.*)$", text, re.MULTILINE)
        if model is None or re.search(r"PCI|NVL", model[1], re.IGNORECASE):
            return None
        words = re.findall(r"[A-Za-z0-9]+", model[1].lower())
        return next((name for name in TARGETS if name != "cpu" and name in words), None)
    return None
