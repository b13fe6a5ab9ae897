"""Tables of the verbs that list things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.text import Text

from cftdiag.catalogue import Entry
from cftdiag.report.console import console_for, print_line, print_prose, print_table
from cftdiag.report.wording import parameters, plural, yes_no


def show_models(entries: Sequence[Entry], *, file: TextIO | None = None, width: int | None = None) -> None:
    """Print entries of the catalogue, one a line, and their number."""
    console = console_for(file, width)
    rows = [
        [e.name, parameters(e.params), str(e.layers or "-"), e.model_type, e.hub_id, yes_no(e.verified)]
        for e in entries
    ]
    print_table(
        console,
        rows,
        header=("name", "parameters", "layers", "architecture", "hub id", "verified"),
        right=(1, 2),
        indent=0,
    )
    print_line(
        console,
        f"{plural(len(entries), 'entry').replace('entrys', 'entries')}; verified: the count agrees with the published total",
    )


def show_doctor(state: Mapping[str, Any], *, file: TextIO | None = None, width: int | None = None) -> None:
    """Print what :func:`cftdiag.doctor.examine` found."""
    console = console_for(file, width)
    platform, torch = state["platform"], state["torch"]
    facts = [[name, str(version or "not installed")] for name, version in state["versions"].items()]
    facts.append(
        [
            "machine",
            f"{platform['system']}, {plural(platform['cpus'], 'CPU')}, {platform['memory_gb'] or '?'} GB",
        ]
    )
    if torch:
        facts.append(["torch build", f"CUDA {torch['cuda_build']}" if torch["cuda_build"] else "CPU"])
        facts.append(["CUDA devices", ", ".join(torch["cuda_devices"]) or "none"])
    facts += [[name, str(version or "not found")] for name, version in state["compilers"].items()]
    names = state["private_names"]
    if names:
        good = sum(row["ok"] for row in names)
        facts.append(["private names", f"{good} of {len(names)} as expected in this torch"])
        facts.append(["deepest depth", state["depth"] or "none"])
    print_table(console, facts, indent=0)
    if state["self_test"]:
        print_line(console)
        print_line(console, Text("Self-test", style="bold"))
        rows = [
            [
                Text("ok", style="green") if test["ok"] else Text("FAILED", style="bold red"),
                test["name"],
                str(test["detail"] or ""),
            ]
            for test in state["self_test"]
        ]
        print_table(console, rows)
    for title, notes in (("Degraded", state["degraded"]), ("Problems", state["problems"])):
        if notes:
            print_line(console)
            print_line(console, Text(title, style="bold"))
        for note in notes:
            print_prose(console, note, indent=2, label="- ")
    print_line(console)
    if state["works"]:
        print_line(console, Text("the check works here", style="bold green"))
    else:
        left = f"; depth {state['depth']} is still available" if state["depth"] else ""
        print_line(console, Text(f"the check cannot work here{left}", style="bold red"))


def show_cache(
    row: Mapping[str, Any], *, now: float, file: TextIO | None = None, width: int | None = None
) -> None:
    """Print one compile cache of `cftdiag cache`. ``now``: Unix seconds."""
    console = console_for(file, width)
    print_line(console, Text(row["path"], style="bold"))
    if row.get("refused"):
        print_prose(console, f"refused: {row['refused']}", indent=2, style="red")
        return
    if "kinds" in row:
        rows = [
            [
                k["kind"],
                str(k["entries"]),
                _bytes(k["size"]),
                f"{age(now - k['oldest'])} to {age(now - k['newest'])}",
            ]
            for k in row["kinds"]
        ]
        print_table(console, rows, header=("kind", "entries", "size", "age"), right=(1, 2))
        if not rows:
            print_line(console, "  empty")
        for maker in row.get("made_by") or ():
            made = ", ".join(f"{name} {value}" for name, value in maker["fingerprint"].items() if value)
            print_line(console, f"  {plural(maker['keys'], 'key')} made by {made}")
            told = ", ".join(
                f"{name} {there or 'none'} there, {here or 'none'} here"
                for name, (there, here) in maker["differs"].items()
            )
            text = f"  none of them hits here: {told}" if told else "  made by the same here: they can hit"
            print_line(console, Text(text, style="red" if told else "green"))
        if row["foreign"]:
            more = f" and {len(row['foreign']) - 3} more" if len(row["foreign"]) > 3 else ""
            print_prose(
                console,
                f"others can write {', '.join(row['foreign'][:3])}{more}: whoever can put an entry here runs code here; "
                "run chmod -R go-w on it, or name a directory of your own in TORCHINDUCTOR_CACHE_DIR",
                indent=2,
                style="yellow",
            )
        return
    counts = ", ".join(f"{count} {kind}" for kind, count in row["artifacts"].items())
    print_line(console, f"  {counts or 'nothing'}, {_bytes(row['size'])}, {age(now - row['time'])} old")
    made = ", ".join(f"{name} {value}" for name, value in row["fingerprint"].items() if value)
    print_line(console, f"  made by {made}")
    if row["hits"]:
        print_line(console, Text("  made by the same here: it can hit", style="green"))
    for name, (there, here) in row["differs"].items():
        print_line(
            console,
            Text(
                f"  nothing of it hits here: {name} {there or 'none'} there, {here or 'none'} here",
                style="red",
            ),
        )


def age(seconds: float) -> str:
    """``5 min``, ``3 h``, ``12 d``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _bytes(size: int) -> str:
    for unit, length in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= length:
            return f"{size / length:.1f} {unit}"
    return f"{size} B"
