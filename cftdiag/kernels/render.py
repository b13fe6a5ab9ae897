"""The report of `cftdiag kernels` in the terminal. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from cftdiag.kernels.titles import title
from cftdiag.report.console import console_for, print_line, print_prose, print_table

_HEADER = (
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
_RIGHT = range(1, len(_HEADER))


def show(
    data: Mapping[str, Any],
    *,
    sources: bool = False,
    code: bool = False,
    file: TextIO | None = None,
    width: int | None = None,
) -> None:
    """Print a report of schema ``cftdiag.kernels/1``; ``sources`` adds each kernel's text, ``code`` the
    bytecode.
    """
    console = console_for(file, width)
    _headline(console, data)
    for block in data["blocks"]:
        names = block["fqns"]
        title = f"{len(names)} x {block['kind']}  {names[0]}" + (f" .. {names[-1]}" if len(names) > 1 else "")
        print_line(console)
        print_line(console, Text(title, style="bold"))
        if not block["graphs"]:
            print_prose(console, "no graph of its own: it runs the code that another kind compiled", indent=2)
        for graph in block["graphs"]:
            _graph(console, graph, sources)
        for change in block["changes"]:
            _change(console, change)
    _findings(console, data["findings"])
    if code:
        for frame in data["bytecode"]:
            _frame(console, frame)
    print_line(console)
    for line in data["assumptions"]:
        print_prose(console, line, indent=2, label="- ", style="dim")


def _headline(console: Console, data: Mapping[str, Any]) -> None:
    device = data["device"]
    print_line(
        console,
        Text(data["model"], style="bold").append(
            f"  generated for {device['name'] if device else 'the CPU'}", style="not bold"
        ),
    )
    shapes = ", ".join(f"{s['batch_size']} x {s['length']}" for s in data["shapes"])
    words = "predicted, no device took part" if data["predicted"] else "read from the device"
    print_prose(
        console,
        f"{words}; batch x length {shapes}; lowering {data['seconds']['lowering']:.0f} s of {data['seconds']['total']:.0f} s",
        indent=2,
    )


def _graph(console: Console, graph: Mapping[str, Any], sources: bool) -> None:
    sizes = ", ".join(f"{name}={size}" for name, size in graph["sizes"].items())
    peak = f", {graph['peak_bytes'] / 1e6:.0f} MB of buffers at the peak" if graph["peak_bytes"] else ""
    print_line(console)
    print_line(
        console,
        Text(f"  {graph['direction']} {graph['compile_id']}", style="bold").append(
            f"  {sizes}{peak}", style="not bold dim"
        ),
    )
    launches = Counter(map(_launch, graph["kernels"]))
    kernels = list({_launch(k): k for k in graph["kernels"]}.values())
    print_table(
        console,
        [_row(k, launches[_launch(k)], graph["direction"]) for k in kernels],
        header=_HEADER,
        right=_RIGHT,
        indent=4,
    )
    rows = [
        [e["op"], *_numbers(e["bytes"], e["flops"], e["roofline"]), _places(e["lines"])]
        for e in graph["externs"]
    ]
    if rows:
        print_line(console)
        print_table(
            console, rows, header=("library call", *_HEADER[2:7], "line"), right=range(1, 6), indent=4
        )
    print_line(console)
    for kernel in kernels:
        print_line(
            console,
            Text("    ")
            .append(title(kernel, graph["direction"]), style="cyan")
            .append(f"  {kernel['name']}")
            .append(f"  {_places(kernel['lines'], 4)}", style="dim"),
        )
        print_prose(console, ", ".join(kernel["aten"]), indent=6, style="dim")
        if sources and kernel["source"]:
            _text(console, kernel["source"], "cpp" if kernel["category"] == "cpp" else "python")


def _launch(kernel: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells launches apart: the kernel, and what it moves and computes."""
    return kernel["name"], kernel["read_bytes"], kernel["write_bytes"], kernel["flops"]


def _row(kernel: Mapping[str, Any], launches: int, direction: str) -> list[str]:
    cells = [
        title(kernel, direction),
        str(launches),
        *_numbers(kernel["read_bytes"] + kernel["write_bytes"], kernel["flops"], kernel["roofline"]),
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


def _numbers(size: int, flops: int | None, roofline: Mapping[str, Any] | None) -> list[str]:
    intensity = "-" if roofline is None or roofline["intensity"] is None else f"{roofline['intensity']:.2f}"
    limits = ["-", "-"] if roofline is None else [f"{roofline['microseconds']:.1f}", roofline["limited_by"]]
    return [f"{size / 1e6:.2f}", "-" if flops is None else f"{flops / 1e6:.1f}", intensity, *limits]


def _span(values: Any) -> str:
    found = list(values)
    return str(found[0]) if min(found) == max(found) else f"{min(found)}-{max(found)}"


def _places(lines: Sequence[Mapping[str, Any]], most: int = 1) -> str:
    shown = [f"{Path(line['file']).name}:{line['line']}" for line in lines[:most]]
    return ", ".join(shown) + (f" +{len(lines) - most}" if len(lines) > most else "")


def _change(console: Console, change: Mapping[str, Any]) -> None:
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
    print_line(console)
    print_prose(console, f"{direction}, {a} -> {b}: {'; '.join(parts)}", indent=2)


def _findings(console: Console, findings: Sequence[Mapping[str, Any]]) -> None:
    if not findings:
        return
    print_line(console)
    print_line(console, Text("Findings from the code", style="bold"))
    for finding in findings:
        where = finding["where"]
        place = f"{Path(where['file']).name}:{where['line']}" if where["file"] else ""
        print_line(
            console,
            Text("  ").append(finding["severity"], style="cyan").append(f"  {finding['cause']}  {place}"),
        )
        for evidence in finding["evidence"]:
            print_prose(console, evidence, indent=4)
        for remedy in finding["remedies"][:1]:
            print_prose(console, remedy["summary"], indent=4, label="fix   ", style="green")
        print_prose(console, f"cftdiag explain {finding['cause']}", indent=4, label="more  ")


def _frame(console: Console, frame: Mapping[str, Any]) -> None:
    print_line(console)
    print_line(
        console,
        Text(
            f"bytecode of {frame['function']}  {frame['file']}:{frame['line']}  ({frame['by']})", style="bold"
        ),
    )
    _text(console, frame["text"], "python" if frame["by"] == "depyf" else "text")


def _text(console: Console, text: str, language: str) -> None:
    """Highlighted on a terminal, line for line elsewhere; never cut to the width."""
    if console.is_terminal:
        console.print(Syntax(text.strip(), language, theme="ansi_light", word_wrap=True))
        return
    for line in text.strip().splitlines():
        print_line(console, Text(line))
