"""The report of `cftdiag kernels` as rows and words, for the terminal and for the page. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.kernels.titles import title

HEADER = (
    "kernel",
    "launches",
    "MB",
    "MFLOP",
    "FLOP/B",
    "bound us",
    "by",
    "regs",
    "spill B",
    "shared B",
    "bits",
    "configs",
)
CALL_HEADER = ("library call", *HEADER[2:7], "line")


def headline(data: Mapping[str, Any]) -> tuple[str, str]:
    """What the code is for, and how it came about."""
    device = data["device"]
    shapes = ", ".join(f"{s['batch_size']} x {s['length']}" for s in data["shapes"])
    words = "predicted, no device took part" if data["predicted"] else "read from the device"
    took = f"lowering {data['seconds']['lowering']:.0f} s of {data['seconds']['total']:.0f} s"
    return (
        f"generated for {device['name'] if device else 'the CPU'}",
        f"{words}; batch x length {shapes}; {took}",
    )


def block_title(block: Mapping[str, Any]) -> str:
    """``36 x DecoderLayer  layers.0 .. layers.35``."""
    names = block["fqns"]
    return f"{len(names)} x {block['kind']}  {names[0]}" + (f" .. {names[-1]}" if len(names) > 1 else "")


def sizes(graph: Mapping[str, Any]) -> str:
    """The sizes that a graph was made for, and the most memory that its buffers take."""
    peak = f", {graph['peak_bytes'] / 1e6:.0f} MB of buffers at the peak" if graph["peak_bytes"] else ""
    return ", ".join(f"{name}={size}" for name, size in graph["sizes"].items()) + peak


def launched(kernels: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int]]:
    """Each kernel once and how often it is launched with the same work."""
    times = Counter(map(launch, kernels))
    return [(kernel, times[key]) for key, kernel in {launch(k): k for k in kernels}.items()]


def library_call(extern: Mapping[str, Any]) -> list[str]:
    """A row under :data:`CALL_HEADER`."""
    return [
        extern["op"],
        *numbers(extern["bytes"], extern["flops"], extern["roofline"]),
        places(extern["lines"]),
    ]


def launch(kernel: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells launches apart: the kernel, and what it moves and computes."""
    return kernel["name"], kernel["read_bytes"], kernel["write_bytes"], kernel["flops"]


def row(kernel: Mapping[str, Any], launches: int, direction: str) -> list[str]:
    """A row under :data:`HEADER`."""
    cells = [
        title(kernel, direction),
        str(launches),
        *numbers(kernel["read_bytes"] + kernel["write_bytes"], kernel["flops"], kernel["roofline"]),
    ]
    if kernel["compiled"] is None:
        return [*cells, *["-"] * 5]
    configurations = kernel["compiled"]["configurations"]
    usages = [c["usage"] for c in configurations]
    widths = [max(map(int, (*u["loads"], *u["stores"])), default=0) for u in usages]
    return [
        *cells,
        _span(u["registers"] for u in usages),
        _span(u["stack"] for u in usages),
        _span(c["shared"] for c in configurations),
        _span(widths),
        _configurations(configurations),
    ]


def _configurations(configurations: Sequence[Mapping[str, Any]]) -> str:
    """``3``, or with a device ``3, won by XBLOCK 8 num_warps 2``."""
    won = next((c["settings"] for c in configurations if c.get("winner")), None)
    return str(len(configurations)) + (
        f", won by {' '.join(f'{k} {v}' for k, v in won.items() if k != 'num_stages')}" if won else ""
    )


def numbers(size: int, flops: int | None, roofline: Mapping[str, Any] | None) -> list[str]:
    """Bytes, operations, operations a byte, and the bound by the roofline, as cells."""
    intensity = "-" if roofline is None or roofline["intensity"] is None else f"{roofline['intensity']:.2f}"
    limits = ["-", "-"] if roofline is None else [f"{roofline['microseconds']:.1f}", roofline["limited_by"]]
    return [f"{size / 1e6:.2f}", "-" if flops is None else f"{flops / 1e6:.1f}", intensity, *limits]


def _span(values: Any) -> str:
    found = list(values)
    return str(found[0]) if min(found) == max(found) else f"{min(found)}-{max(found)}"


def places(lines: Sequence[Mapping[str, Any]], most: int = 1) -> str:
    """``modeling_qwen3.py:66 +2``."""
    shown = [f"{Path(line['file']).name}:{line['line']}" for line in lines[:most]]
    return ", ".join(shown) + (f" +{len(lines) - most}" if len(lines) > most else "")


def change_words(change: Mapping[str, Any]) -> str:
    """What changes between two graphs of one block, in one sentence."""
    a, b = (
        f"{change[k]['compile_id']} ({', '.join(f'{n}={s}' for n, s in change[k]['sizes'].items())})"
        for k in ("from", "to")
    )
    direction = "backward" if change["backward"] else "forward"
    parts = [f"{change['same']} kernels the same"]
    for key, word in (("changed", "changed"), ("only_before", "gone"), ("only_after", "new")):
        if change[key]:
            names = ", ".join(n["after"] if isinstance(n, Mapping) else n for n in change[key])
            parts.append(f"{len(change[key])} {word}: {names}")
    return f"{direction}, {a} -> {b}: {'; '.join(parts)}"
