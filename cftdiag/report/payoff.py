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
    print_line(console, Text(title(found), style="bold"))
    rows: list[list[str | Text]] = [list(row) for row in scope_rows(found)]
    for row, scope in zip(rows, found["scopes"], strict=True):
        if scope["gain"][0] >= 1.02:
            row[4] = Text(str(row[4]), style="green")
    if rows:
        print_table(console, rows, SCOPES, right=range(1, len(SCOPES)))
    if shapes := shape_rows(found):
        print_line(console)
        print_table(console, shapes, shape_columns(found), right=range(1, len(shape_columns(found))))
    for sentence in sentences(found):
        print_prose(console, sentence, indent=2)


#: What memory is told by.
PARTS = ("parameters", "gradients", "optimizer", "gathered", "saved", "loss", "transient", "other")
#: Rows beyond which nobody looks for more.
MOST_ROWS = 1 << 14
#: Columns of :func:`scope_rows`.
SCOPES = (
    "scope", "kernels", "beside products", "step", "gain", "graphs", "compile", "pays after", "peak a rank", "largest batch",
)  # fmt: skip


def title(found: Mapping[str, Any]) -> str:
    """What was counted, on what."""
    ac = "" if found["ac"] == "none" else f", checkpointing {found['ac']}"
    ranks = "" if found["world_size"] == 1 else f", {found['world_size']} ranks"
    if found["length"] is None:
        what = "Gain" if found["scopes"] else "Memory"
        return f"{what} on {found['device']}: the last step of the command{ranks} (estimated)"
    return f"Gain on {found['device']}: batch {found['batch_size']} x {found['length']} tokens, {found['dtype']}{ac}{ranks} (estimated)"


def scope_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """A row for each compile scope, columns :data:`SCOPES`."""
    taken = {one["scope"]: one for one in found.get("memory_by_scope", ())}
    return [[*_row(scope), *_fits(taken.get(scope["scope"]), found)] for scope in found["scopes"]]


def _fits(taken: Mapping[str, Any] | None, found: Mapping[str, Any]) -> list[str]:
    if taken is None:
        return ["", ""]
    most = taken["largest_batch"]
    if taken.get("longest_row"):
        return [bytes_(taken["peak"]), f"1 x {taken['longest_row']:,}"]
    return [
        bytes_(taken["peak"]),
        f"{_most(most)} x {found['length']}" if most else _most(most),
    ]


def _row(scope: Mapping[str, Any]) -> list[str]:
    steps = [bound["step"] * 1e3 for bound in scope["seconds"].values()]
    known = [
        scope["scope"],
        f"{scope['kernels']:,}",
        bytes_(scope["bytes_beside_products"]),
        _range(steps, "ms"),
    ]
    if not scope["graphs"]:
        return [*known, "", "", "", ""]
    return [
        *known,
        gain(scope["gain"]),
        str(scope["graphs"]),
        # a report that was saved by an earlier release has no range
        _range(scope.get("compile_seconds_range") or [scope["compile_seconds"]], "s"),
        steps_to_pay(scope["break_even_steps"]),
    ]


def shape_columns(found: Mapping[str, Any]) -> list[str]:
    """Columns of :func:`shape_rows`."""
    scopes = [one["scope"] for one in found["over_all_shapes"]]
    often = ["how often"] if len({one["visits"] for one in found["by_shape"]}) > 1 else []
    return ["batch", *often, *(f"gain {s}" for s in scopes), *(f"largest {s}" for s in ("none", *scopes))]


def shape_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """A row for each shape of several, and one for all together: gain by scope, then the largest batch."""
    shapes = found.get("by_shape") or []
    scopes = [one["scope"] for one in found.get("over_all_shapes") or ()]
    weigh = len({one["visits"] for one in shapes}) > 1
    rows = []
    for one in shapes:
        by = {scope["scope"]: scope for scope in one["scopes"]}
        rows.append(
            [
                f"{one['batch_size']} x {one['length']}",
                *([f"{one['visits']:.0f}"] if weigh else []),
                *(gain(by[s]["gain"]) for s in scopes),
                *(_most(by[s]["largest_batch"]) for s in ("none", *scopes)),
            ]
        )
    if rows:
        all_ = {one["scope"]: one["gain"] for one in found["over_all_shapes"]}
        rows.append(
            ["all", *([""] if weigh else []), *(gain(all_[s]) for s in scopes), *[""] * (len(scopes) + 1)]
        )
    return rows


def _most(rows: int | None) -> str:
    if not rows:
        return "" if rows is None else "none fits"
    return f"{rows:,}{'+' if rows >= MOST_ROWS else ''}"


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
    lines = [_products(found)] if found["scopes"] else []
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
        f"save are the {bytes_(none['bytes_beside_products'])} moved beside them"
    )


def _memory(taken: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    parts = ", ".join(f"{name} {bytes_(taken[name])}" for name in PARTS if taken.get(name))
    largest = taken["largest_batch"]
    up_to = "" if largest is None else f", up to {largest} x {found['length']}"
    if taken.get("longest_row"):
        up_to = f", up to a row of {taken['longest_row']:,} tokens (max_tokens_per_gpu)"
    # a report that was saved by an earlier release has no device's memory
    room = "" if found.get("device_bytes") is None else f" {bytes_(found['device_bytes'])}"
    fits = "yes" if taken["fits"] else "no"
    return f"peak {bytes_(taken['peak'])} a rank ({parts}): fits{room}: {fits}{_at(found)}{up_to}"


def _at(found: Mapping[str, Any]) -> str:
    """`` at 4 x 2048``: of several batches the largest."""
    if found["length"] is not None:
        return f" at {found['batch_size']} x {found['length']}"
    rows, length = max(found.get("batches") or [(0, 0)], key=lambda at: at[0] * at[1])
    return f" at {rows} x {length}" if rows else ""


def bytes_(count: float) -> str:
    """``12.6 GB``."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _range(values: Sequence[float], unit: str) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}-{high:.0f} {unit}" if f"{low:.0f}" != f"{high:.0f}" else f"{low:.0f} {unit}"
