"""What compiling gains and takes, in the terminal: a table of compile scopes, memory, and how it was estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from cftdiag.report.console import print_line, print_prose, print_table


def show(console: Console, data: Mapping[str, Any]) -> None:
    """The section of ``data["payoff"]``; nothing for a check without one."""
    found = data.get("payoff")
    if not found:
        return
    print_line(console)
    ac = "" if found["ac"] == "none" else f", checkpointing {found['ac']}"
    ranks = "" if found["world_size"] == 1 else f", {found['world_size']} ranks"
    title = f"Gain on {found['device']}: batch {found['batch_size']} x {found['length']} tokens, {found['dtype']}{ac}{ranks} (estimated)"
    print_line(console, Text(title, style="bold"))
    header = ("scope", "kernels", "beside products", "step", "gain", "graphs", "compile", "pays after")
    rows = [_row(scope) for scope in found["scopes"]]
    print_table(console, rows, header, right=(1, 2, 3, 4, 5, 6, 7))
    for sentence in sentences(found):
        print_prose(console, sentence, indent=2)


def _row(scope: Mapping[str, Any]) -> list[str | Text]:
    steps = [bound["step"] * 1e3 for bound in scope["seconds"].values()]
    if not scope["graphs"]:
        return [
            scope["scope"],
            _count(scope["kernels"]),
            _bytes(scope["bytes_beside_products"]),
            _range(steps, "ms"),
            "",
            "",
            "",
            "",
        ]
    return [
        scope["scope"],
        _count(scope["kernels"]),
        _bytes(scope["bytes_beside_products"]),
        _range(steps, "ms"),
        Text(gain(scope["gain"]), style="green" if scope["gain"][0] >= 1.02 else ""),
        str(scope["graphs"]),
        f"{scope['compile_seconds']:.0f} s",
        steps_to_pay(scope["break_even_steps"]),
    ]


def gain(low_high: Sequence[float]) -> str:
    """``1.21-1.28x``."""
    low, high = low_high
    return f"{low:.2f}x" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}-{high:.2f}x"


def steps_to_pay(low_high: Sequence[int] | None) -> str:
    """``1,100-1,400 steps``."""
    if low_high is None:
        return "never"
    low, high = low_high
    if high >= 10**9:
        return f"{low:,} steps or never"
    return f"{low:,}-{high:,} steps" if low != high else f"{low:,} steps"


def sentences(found: Mapping[str, Any]) -> list[str]:
    """What the table cannot hold: where the time goes, memory, assumptions."""
    lines = [_products(found)]
    for name in ("eager", "compiled"):
        taken = found["memory"].get(name)
        if taken is not None:
            lines.append(f"memory {name}: {_memory(taken, found)}")
    lines += [f"{one['scope']} could not be lowered: {one['why']}" for one in found["refused"]]
    return [*lines, *found["assumptions"]]


def _products(found: Mapping[str, Any]) -> str:
    none = found["scopes"][0]
    seconds = next(iter(none["seconds"].values()))
    share = seconds["products"] / seconds["device"] if seconds["device"] else 0.0
    best = max(found["scopes"], key=lambda s: s["gain"][1])
    if best["gain"][1] < 1.02:
        return f"nothing to gain: {share:.0%} of eager's time is matrix products and attention, which compiling leaves as they are"
    return (
        f"{share:.0%} of eager's time is matrix products and attention, which compiling leaves as they are; what it can "
        f"save are the {_bytes(none['bytes_beside_products'])} moved beside them"
    )


def _memory(taken: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    parts = ", ".join(
        f"{name} {_bytes(taken[name])}"
        for name in ("parameters", "gradients", "optimizer", "gathered", "saved", "loss")
        if taken[name]
    )
    largest = taken["largest_batch"]
    up_to = "" if largest is None else f", up to {largest} x {found['length']}"
    fits = "fits" if taken["fits"] else "does not fit"
    return f"peak {_bytes(taken['peak'])} a rank ({parts}): {fits}{up_to}"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _count(number: int) -> str:
    return f"{number:,}"


def _range(values: Sequence[float], unit: str) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}-{high:.0f} {unit}" if f"{low:.0f}" != f"{high:.0f}" else f"{low:.0f} {unit}"
