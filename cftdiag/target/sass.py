"""What a compiled kernel needs and how it touches memory, read from its cubin by NVIDIA's own tools, which
Triton ships. Torch-free.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_ACCESS = re.compile(r"\b(LDG|STG|LDL|STL)((?:\.\w+)*)")
#: Double precision in Volta to Blackwell code: add, multiply, fused multiply-add, compare, minimum,
#: conversions.
_FP64 = re.compile(
    r"\b(?:DADD|DMUL|DFMA|DSETP|DMNMX|F2F\.F64\.\w+|F2F\.\w+\.F64|I2F\.F64\w*|MUFU\.\w+64H?)\b"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """Figures of one cubin. ``loads`` and ``stores`` map bits per thread of a global access to the number of
    such instructions.
    """

    registers: int
    """Per thread."""
    stack: int
    """Bytes per thread, spilled registers included."""
    static_shared: int
    """Bytes per block, without what is asked for at the launch."""
    spill_stores: int
    """Instructions that write registers to the stack."""
    spill_loads: int
    loads: Mapping[int, int]
    stores: Mapping[int, int]
    fp64: int
    """Instructions in double precision."""

    @property
    def widest(self) -> int:
        """Bits of the widest global access, 0 without one."""
        return max([*self.loads, *self.stores], default=0)


@functools.cache
def tools() -> Path:
    """Folder of ``cuobjdump`` and ``nvdisasm``."""
    import triton

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def bits(suffix: str) -> int:
    """Width of an access from its instruction's modifiers: ``.E.EF.128`` -> 128, ``.E.U16`` -> 16, none of
    them
    -> 32.
    """
    for part in reversed(suffix.split(".")):
        if part in ("256", "128", "64"):
            return int(part)
        if part in ("U16", "S16"):
            return 16
        if part in ("U8", "S8"):
            return 8
    return 32


def parse(usage: str, code: str) -> Usage:
    """Figures from the text of ``cuobjdump -res-usage`` and ``nvdisasm -c``; ``ValueError`` when the first
    names no registers.
    """
    found = _USAGE.search(usage)
    if found is None:
        raise ValueError(f"cuobjdump printed no resource usage: {usage.strip()[:200]!r}")
    counts: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for operation, suffix in _ACCESS.findall(code):
        counts[operation][bits(suffix)] += 1
    return Usage(
        registers=int(found[1]),
        stack=int(found[2]),
        static_shared=int(found[3]),
        spill_stores=counts["STL"].total(),
        spill_loads=counts["LDL"].total(),
        loads=dict(sorted(counts["LDG"].items(), reverse=True)),
        stores=dict(sorted(counts["STG"].items(), reverse=True)),
        fp64=len(_FP64.findall(code)),
    )


def read(cubin: bytes) -> Usage:
    """Disassemble one cubin; takes about a third of a second."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = (
            subprocess.run(
                [str(tools() / tool), option, file.name], capture_output=True, text=True, timeout=120
            ).stdout
            for tool, option in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
        )
    return parse(usage, code)
