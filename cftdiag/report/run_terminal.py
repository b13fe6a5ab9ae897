"""A run in the terminal: headline, ranks, compiles by step, recompiles by cause and block, divergence, time,
findings, the verdict.
"""

from __future__ import annotations

import collections
import datetime
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from cftdiag.cache_keys import missed_key
from cftdiag.report import terminal, wording
from cftdiag.report.console import console_for, print_line, print_prose, print_table

#: Rows of a list that are shown; the JSON holds all.
MAX_ROWS = 16
MAX_ALARMS = 8
MAX_RANKS = 16

_WORDS = {
    "viable": "held",
    "viable_with_recompiles": "held, with recompiles",
    "not_viable": "did not hold",
    "error": "no conclusion",
}


def show(
    data: Mapping[str, Any], *, quiet: bool = False, file: TextIO | None = None, width: int | None = None
) -> None:
    """Print a report of schema ``cftdiag.run/1`` to ``file`` (default stdout); ``quiet`` prints the verdict
    line alone.
    """
    console = console_for(file, width)
    if not quiet:
        _headline(console, data)
        _ranks(console, data)
        _compiles(console, data)
        _causes(console, data)
        _divergence(console, data)
        _caches(console, data)
        _guards(console, data)
        _time(console, data)
        _alarms(console, data)
        terminal._findings(console, data)
        for problem in data["problems"]:
            print_line(console)
            print_prose(console, problem, style="yellow")
        print_line(console)
    print_line(console, Text(verdict_line(data), style=terminal._VERDICT_STYLES.get(data["verdict"], "bold")))
    if not quiet:
        terminal.change_first(console, data)


def verdict_line(data: Mapping[str, Any]) -> str:
    """``torch.compile held, with recompiles: 2 recompiles, 1 graph break over 120 steps of 2 ranks``."""
    counts = [wording.plural(len(data[key]), noun) for key, noun in _COUNTED if data[key]]
    over = [wording.plural(data["steps"], "step")] if data["steps"] else []
    over += [wording.plural(data["ranks"], "rank")] if data["ranks"] else []
    text = f"{data['verdict']}: torch.compile {_WORDS.get(data['verdict'], '')}: {', '.join(counts) or 'no recompiles, no graph breaks'}"
    return f"{text} over {' of '.join(over)}" if over else text


_COUNTED = (
    ("recompiles", "recompile"),
    ("graph_breaks", "graph break"),
    ("limit_hits", "limit hit"),
    ("errors", "error"),
)


def _title(console: Console, text: str) -> None:
    print_line(console)
    print_line(console, Text(text, style="bold"))


def _headline(console: Console, data: Mapping[str, Any]) -> None:
    source = data["source"]
    kind = "TORCH_TRACE" if source["kind"] == "trace" else "run"
    ranks = wording.plural(data["ranks"], "rank")
    if data["world_size"] > data["ranks"]:
        ranks += f" of {data['world_size']}"
    facts = [ranks, wording.plural(data["steps"], "step")] if data["steps"] else [ranks]
    if data.get("started"):
        facts.append(f"started {datetime.datetime.fromtimestamp(data['started']):%Y-%m-%d %H:%M:%S}")
    print_line(
        console,
        Text(f"{kind} {source['path']}", style="bold").append(f"  {', '.join(facts)}", style="not bold"),
    )
    versions = [
        f"{name} {data['environment'][name]}"
        for name in ("torch", "transformers", "triton")
        if data["environment"].get(name)
    ]
    if versions:
        print_line(console, f"  {', '.join(versions)}")
    ended = data.get("ended")
    if ended and ended.get("exit_code") is not None:
        how = f"signal {ended['signal']}" if ended.get("signal") else f"exit code {ended['exit_code']}"
        print_line(console, f"  ended with {how}")
    elif data["by_rank"] and source["kind"] == "run" and not all(r["ended"] for r in data["by_rank"]):
        open_ = [r["rank"] for r in data["by_rank"] if not r["ended"]]
        print_line(
            console,
            f"  no end noted by {'rank' if len(open_) == 1 else 'ranks'} {wording.number_ranges(open_)}: still running, or killed",
        )


def _ranks(console: Console, data: Mapping[str, Any]) -> None:
    rows = data["by_rank"]
    if len(rows) < 2:
        return
    _title(console, "Ranks")
    keys = ("rank", "host", "steps", "compiles", "recompiles", "graph_breaks", "limit_hits")
    cells = [
        [*(str(row.get(key) if row.get(key) is not None else "-") for key in keys), f"{row['compile_s']:.1f}"]
        for row in rows[:MAX_RANKS]
    ]
    header = ("rank", "host", "steps", "compiles", "recompiles", "breaks", "limit hits", "compile s")
    print_table(console, cells, header=header, right=(0, 2, 3, 4, 5, 6, 7))
    terminal._more(console, len(rows) - MAX_RANKS)


def _compiles(console: Console, data: Mapping[str, Any]) -> None:
    """Compiles by step: one row a step and region, ranks joined."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in data["compiles"]:
        if row.get("region") != "backward":
            groups.setdefault((row["step"], row["block"] or row["code"]), []).append(row)
    if not groups:
        return
    causes = {(r["rank"], r["compile_id"], r["step"]): r["cause"] for r in data["recompiles"]}
    backward: dict[tuple[int, Any, int], float] = collections.defaultdict(float)
    for row in data["compiles"]:
        if row.get("region") == "backward":
            backward[row["rank"], row["compile_id"], row["step"]] += row["seconds"] or 0.0
    _title(console, "Compiles by step")
    cells = []
    for (step, region), rows in groups.items():
        seconds = max(
            (row["seconds"] or 0.0) + backward[row["rank"], row["compile_id"], row["step"]] for row in rows
        )
        cause = next(
            (c for row in rows if (c := causes.get((row["rank"], row["compile_id"], row["step"])))), None
        )
        batch = next((" x ".join(map(str, row["batch"])) for row in rows if row.get("batch")), "")
        ranks = wording.number_ranges({row["rank"] for row in rows})
        status = next((str(row["status"]) for row in rows if row.get("status") not in ("ok", None)), "")
        cells.append(
            [
                str(step),
                str(region or "?"),
                ranks,
                batch,
                f"{seconds:.2f}",
                cause or status or ("first" if step <= 1 else ""),
            ]
        )
    print_table(
        console,
        cells[:MAX_ROWS],
        header=("step", "block", "ranks", "batch", "seconds", "cause"),
        right=(0, 4),
    )
    terminal._more(console, len(cells) - MAX_ROWS)


def _causes(console: Console, data: Mapping[str, Any]) -> None:
    """Recompiles by cause and block."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in data["recompiles"]:
        groups.setdefault(
            (str(row["cause"] or "unknown"), str(row["class"] or row["code"] or "?")), []
        ).append(row)
    if not groups:
        return
    _title(console, "Recompiles by cause")
    cells = []
    for (cause, cls), rows in sorted(groups.items(), key=lambda item: -len(item[1])):
        blocks = wording.fold_names(list(dict.fromkeys(str(row["block"]) for row in rows if row["block"])))
        lost = sum(row["seconds"] or 0.0 for row in rows)
        cells.append(
            [
                cause,
                cls,
                blocks,
                str(len(rows)),
                f"{lost:.2f}",
                wording.number_ranges({row["step"] for row in rows}),
            ]
        )
    print_table(
        console,
        cells[:MAX_ROWS],
        header=("cause", "class", "blocks", "times", "seconds", "steps"),
        right=(3, 4),
    )
    terminal._more(console, len(cells) - MAX_ROWS)


def _divergence(console: Console, data: Mapping[str, Any]) -> None:
    rows = data["divergence"]
    if not rows:
        return
    _title(console, "Ranks that compiled alone")
    cells = []
    for row in rows[:MAX_ROWS]:
        own = _shapes(row, row["ranks"])
        others = _shapes(row, row["waiting"])
        batch = f"{own} against {others}" if own and others else own
        waiting = wording.number_ranges(row["waiting"])
        cells.append(
            [
                str(row["step"]),
                wording.number_ranges(row["ranks"]),
                waiting,
                f"{row['seconds']:.2f}",
                f"{row['waited']:.2f}",
                batch,
                row["guard"] or "",
            ]
        )
    header = ("step", "ranks", "waiting", "seconds", "lost", "batch", "guard")
    print_table(console, cells, header=header, right=(0, 3, 4))
    terminal._more(console, len(rows) - MAX_ROWS)


def _shapes(row: Mapping[str, Any], ranks: Sequence[int]) -> str:
    shapes = dict.fromkeys(tuple(shape) for rank in ranks for shape in row["batches"].get(str(rank), ()))
    return ", ".join(f"{rows} x {length}" for rows, length in list(shapes)[:3])


def _caches(console: Console, data: Mapping[str, Any]) -> None:
    """Hits and misses by cache, and what kept each miss from the nearest entry."""
    lookups = data.get("caches") or []
    if not lookups:
        return
    _title(console, "Compile caches")
    for cache in dict.fromkeys(str(row["cache"]) for row in lookups):
        counts = collections.Counter(str(row["outcome"]) for row in lookups if str(row["cache"]) == cache)
        print_line(console, f"  {cache}: {', '.join(f'{n} {outcome}' for outcome, n in counts.items())}")
    told = [row for row in lookups if row["outcome"] == "miss" and row.get("differs") is not None]
    for row in told[:MAX_ROWS]:
        rank = f"rank {row['rank']}, " if data["ranks"] > 1 else ""
        print_line(console, f"  {rank}{row['compile_id']} missed {row['cache']}: {missed_key(row)}")
    terminal._more(console, len(told) - MAX_ROWS)


def _guards(console: Console, data: Mapping[str, Any]) -> None:
    for counts in data["guards"][:1]:
        _title(console, f"Guard lookups of rank {counts['rank']}")
        print_line(
            console,
            f"  {counts['lookups']} lookups, {counts['misses']} compiled; guard checks about {counts['guard_us_per_step']:.0f} us a step, "
            f"counting them {counts['us_per_step']:.0f} us a step",
        )
        missed = sorted((e for e in counts["entries"] if e["misses"]), key=lambda e: -e["misses"])
        cells = []
        for entry in missed[:MAX_ROWS]:
            guard = entry["guards"][0]["guard"] if entry["guards"] else ""
            cells.append(
                [
                    entry["block"],
                    entry["entry"],
                    str(entry["hits"]),
                    str(entry["misses"]),
                    " ".join(guard.split()),
                ]
            )
        if cells:
            print_table(
                console, cells, header=("block", "entry", "matched", "failed", "failing guard"), right=(2, 3)
            )
        terminal._more(console, len(missed) - MAX_ROWS)


def _time(console: Console, data: Mapping[str, Any]) -> None:
    timing = data["timing"]
    facts = [f"compiling {timing['compile_s']:.1f} s"]
    if timing["wall_s"]:
        share = 100 * timing["compile_s"] / timing["wall_s"]
        facts[0] += (
            f" of {timing['wall_s']:.1f} s ({share:.0f}%), {timing['first_step_compile_s']:.1f} s in the first step"
        )
    if timing["waited_s"]:
        facts.append(f"ranks waiting for another's compile {timing['waited_s']:.1f} s")
    if timing["steady_step_s"] is not None:
        facts.append(f"a step without compiling {1e3 * timing['steady_step_s']:.1f} ms")
    _title(console, "Time")
    for fact in facts:
        print_line(console, f"  {fact}")
    if timing["eager_step_s"] is not None and timing["steady_step_s"] is not None:
        eager = f"an eager step {1e3 * timing['eager_step_s']:.1f} ms"
        if timing["break_even_step"] is not None:
            print_line(
                console, f"  {eager}: the compile time is earned back at step {timing['break_even_step']}"
            )
        else:
            print_line(console, f"  {eager}: not slower, the compile time is never earned back")


def _alarms(console: Console, data: Mapping[str, Any]) -> None:
    alarms = data["alarms"]
    if not alarms:
        return
    _title(console, "Alarms")
    groups: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
    for alarm in alarms:
        groups.setdefault((alarm["kind"], alarm["step"], alarm["message"]), []).append(alarm)
    for (kind, step, message), rows in list(groups.items())[:MAX_ALARMS]:
        ranks = wording.number_ranges({row["rank"] for row in rows})
        blocks = wording.fold_names(list(dict.fromkeys(str(row["block"]) for row in rows if row["block"])))
        print_prose(
            console,
            f"step {step}, rank {ranks}: {blocks}{': ' if blocks else ''}{message}",
            indent=2,
            label=f"{kind}  ",
        )
    terminal._more(console, len(groups) - MAX_ALARMS)
