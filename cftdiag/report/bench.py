"""A comparison of arms in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from cftdiag.report.console import print_line, print_prose, print_table

HEADER = (
    "arm",
    "step",
    "p10-p90",
    "tokens/s",
    "peak",
    "compile",
    "warm",
    "graphs",
    "recompiles",
    "gain",
    "pays after",
)


def show(console: Console, data: Mapping[str, Any]) -> None:
    """``cftdiag.bench/1`` as a table and what it cannot hold."""
    machine = data["machine"]
    ranks = "" if machine["world_size"] in (None, 1) else f", {machine['world_size']} ranks"
    title = f"{data['subject']} on {machine['device'] or 'an unknown device'}{ranks}, torch {machine['torch']}, {machine['threads']} threads"
    print_line(console, Text(title, style="bold"))
    taken = "in turn after each step" if data["together"] else "one run after the other"
    print_line(
        console,
        f"  {_count(data['rounds'], 'round')} of {_count(data['steps'], 'step')}, {data['warmup']} of them warm-up, arms {taken}",
    )
    print_line(console)
    print_table(console, [_row(arm) for arm in data["arms"]], HEADER, right=range(1, len(HEADER)))
    print_line(console)
    for line in sentences(data):
        print_prose(console, line, indent=2)


def _row(arm: Mapping[str, Any]) -> list[str | Text]:
    spread, against = arm["step_seconds"], arm["against_eager"]
    if spread is None:
        return [arm["arm"], Text("failed" if arm["failed"] else "did not run", style="red")]
    cold, warm = arm["compile_seconds_cold"], arm["compile_seconds_warm"]
    compiled = bool(arm["graphs"])
    return [
        arm["arm"],
        seconds(spread["median"]),
        f"{seconds(spread['p10'])}-{seconds(spread['p90'])}",
        "" if arm["tokens_per_second"] is None else f"{arm['tokens_per_second']:,.0f}",
        "" if arm["peak_bytes"] is None else f"{arm['peak_bytes'] / 1e9:.2f} GB",
        f"{cold:.1f} s" if compiled and cold is not None else "",
        f"{warm:.1f} s" if compiled and warm is not None else "",
        str(arm["graphs"]) if compiled else "",
        str(arm["recompiles"]) if compiled else "",
        "" if against is None else gain(against["gain"]),
        steps(against["break_even_cold"]) if compiled and against and against["break_even_cold"] else "",
    ]


def sentences(data: Mapping[str, Any]) -> list[str]:
    """Of each arm what the table cannot hold."""
    lines = []
    for arm in data["arms"]:
        name = arm["arm"]
        if arm["failed"]:
            lines.append(f"{name}: failed: {arm['failed']}")
        if arm["differs"]:
            lines.append(f"{name}: not compared with eager: {'; '.join(arm['differs'])}")
        against = arm["against_eager"]
        if against is not None:
            lines.append(f"{name}: {_verdict(against, data['confidence'], compiled=bool(arm['graphs']))}")
        if arm["loss"] is not None:
            first, most = _share(arm["loss"]["first"]), _share(arm["loss"]["most"])
            lines.append(
                f"{name}: loss as eager's within {first} in the first step, {most} over all {arm['loss']['steps']}"
            )
        if arm["late_compiles"]:
            numbers = ", ".join(map(str, arm["late_compiles"][:8]))
            lines.append(f"{name}: compiled after the warm-up, in step {numbers}; those steps are left out")
    if data["interrupted"]:
        lines.append("interrupted: these are the steps that ran")
    return lines


def _verdict(against: Mapping[str, Any], confidence: float, *, compiled: bool) -> str:
    found = against["gain"]
    between = (
        f" ({found['low']:.3f}-{found['high']:.3f} with {confidence:.0%} confidence, {against['pairs']} pairs of steps)"
        if found["low"] is not None
        else f" ({against['pairs']} pairs of steps, too few for an interval)"
    )
    text = f"gains {found['median']:.3f}x over eager{between}"
    if found["low"] is not None and found["low"] <= 1 <= found["high"]:
        text += ", which may be nothing"
    elif found["median"] < 1:
        text += ": it costs time here"
    thousand = against["saved_per_1000_steps"]
    if compiled and thousand is not None:
        word = "saves" if thousand["median"] >= 0 else "costs"
        text += f"; compiling cold, 1,000 steps {word} {abs(thousand['median']):.1f} s"
    return text


def gain(interval: Mapping[str, Any]) -> str:
    """``1.21x`` with its bounds where there are some."""
    if interval["low"] is None:
        return f"{interval['median']:.2f}x"
    return f"{interval['median']:.2f}x ({interval['low']:.2f}-{interval['high']:.2f})"


def steps(found: Mapping[str, int | None]) -> str:
    """``120 steps (90-200)``; ``never`` where nothing is saved."""
    low, middle, high = (found[key] for key in ("low", "median", "high"))
    if middle is None:
        return "never" if low is None else f"never ({low:,} at best)"
    if low is None and high is None:
        return f"{middle:,} steps"
    return f"{middle:,} steps ({low or 0:,}-{'never' if high is None else f'{high:,}'})"


def seconds(value: float) -> str:
    """``812 us``, ``41.2 ms``, ``2.05 s``."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if value * scale >= 1:
            number = value * scale
            return f"{number:.3g} {unit}" if number < 100 else f"{number:.0f} {unit}"
    return f"{value * 1e6:.0f} us"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _share(value: float) -> str:
    return f"{value:.1e}" if value else "0"
