"""The live view of a run: ranks, compiles in flight, who waits for whom, the last events, the map of blocks."""

from __future__ import annotations

import time
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cftdiag.monitor.alarms import why
from cftdiag.monitor.run_state import RankView, View
from cftdiag.report.console import console_for, print_line, table_lines, visible
from cftdiag.report.wording import fold_names, number_ranges, plural

#: Ranks shown one by one; more are shown by what they do.
MAX_RANKS = 16
MAX_BLOCKS = 12
_STYLES = {"recompile": "yellow", "graph_break": "red", "limit_hit": "bold red", "error": "bold red"}


def show(
    view: View, *, file: TextIO | None = None, width: int | None = None, now: float | None = None
) -> None:
    """Print the present state once."""
    console = console_for(file, width)
    for line in lines(view, time.time() if now is None else now):
        print_line(console, line)


def follow(view: View, *, every_s: float = 0.5, file: TextIO | None = None) -> None:
    """Keep the state on the screen until the run ends or Ctrl-C; on something that is no terminal, print it
    whenever it changes.
    """
    console = console_for(file)
    if not console.is_terminal:
        _print_changes(view, console, every_s)
        return
    with Live(_group(view), console=console, refresh_per_second=4, screen=False) as live:
        while True:
            view.refresh()
            live.update(_group(view))
            if view.finished:
                return
            time.sleep(every_s)


def _print_changes(view: View, console: Console, every_s: float) -> None:
    told = 0
    seen: list[str] = []
    while True:
        view.refresh()
        rows = [line.plain for line in event_lines(view)]
        for row in rows:
            if row not in seen:
                print_line(console, row)
        seen = rows
        waiting = view.waiting()
        if waiting is not None and time.monotonic() - told > 10:
            told = int(time.monotonic())
            print_line(console, waiting.sentence(time.time()))
        if view.finished:
            print_line(console, headline(view, time.time()))
            return
        time.sleep(every_s)


def _group(view: View) -> RenderableType:
    return Group(*map(visible, lines(view, time.time())))


def lines(view: View, now: float) -> list[Text]:
    """The whole view as lines."""
    found = [headline(view, now), Text(""), *rank_lines(view, now)]
    waiting = view.waiting(now)
    if waiting is not None:
        found.append(Text(f"  {waiting.sentence(now)}", style="bold yellow"))
    lost = view.lost()
    if lost is not None:
        share = f"{100 * lost[0] / lost[1]:.0f}%"
        found.append(Text(f"  compiling took {lost[0]:.0f} s of {lost[1]:.0f} s so far ({share})"))
    ahead = view.ahead()
    if ahead is not None and not view.finished:
        found.append(Text(f"  {ahead.sentence()}"))
    events = event_lines(view)
    if events:
        found += [Text(""), Text("Last events", style="bold"), *events]
    blocks = block_lines(view)
    if blocks:
        found += [Text(""), Text("Blocks", style="bold"), *blocks]
    return found


def headline(view: View, now: float) -> Text:
    """``RUN  step 120, 3.4 steps/s, 2 ranks, running``."""
    ranks = list(view.ranks.values())
    step = min((r.step for r in ranks), default=0)
    rates = [r.steps_per_s for r in ranks if r.steps_per_s]
    rate = f", {min(rates):.2f} steps/s" if rates else ""
    if view.finished:
        state = (
            "ended"
            if view.meta.get("exit_code") in (None, 0)
            else f"ended with exit code {view.meta['exit_code']}"
        )
    elif not ranks:
        state = "no rank has been heard of yet"
    else:
        quiet = now - max(r.heard for r in ranks)
        state = "running" if quiet < 30 else f"nothing heard for {quiet:.0f} s"
    return Text(str(view.directory), style="bold").append(
        f"  step {step}{rate}, {plural(len(ranks), 'rank')}, {state}", style="not bold"
    )


def rank_lines(view: View, now: float) -> list[Text]:
    """One line a rank, what it does in the last column."""
    ranks = [view.ranks[rank] for rank in sorted(view.ranks)]
    rows: list[list[str | Text]] = []
    for r in (
        [r for r in ranks if r.compiling and not r.ended][:MAX_RANKS] if len(ranks) > MAX_RANKS else ranks
    ):
        rate = f"{r.steps_per_s:.2f}" if r.steps_per_s else "-"
        rows.append(
            [str(r.rank), r.host, str(r.step), rate, str(r.recompiles), f"{r.compile_s:.1f}", _doing(r, now)]
        )
    if not rows:
        return []
    return table_lines(
        rows,
        header=("rank", "host", "step", "steps/s", "recompiles", "compile s", "now"),
        right=(0, 2, 3, 4, 5),
    )


def _doing(r: RankView, now: float) -> Text:
    if r.ended:
        return Text("ended", style="dim")
    if r.compiling:
        return Text(
            f"compiling {r.compiling.get('id') or ''} {max(0.0, now - float(r.compiling['since'])):.0f} s",
            style="yellow",
        )
    return Text("training")


def event_lines(view: View) -> list[Text]:
    """The last events, newest last."""
    found = []
    for event, ranks in view.last:
        line = Text(f"  step {event.step}, rank {number_ranges(ranks)}  ")
        line.append(event.kind, style=_STYLES.get(event.kind, ""))
        batch = event.detail.batch
        line.append(
            f"  {event.block or '?'}{'  batch ' + ' x '.join(map(str, batch)) if batch else ''}  {why(event)}"
        )
        found.append(line)
    return found


def block_lines(view: View) -> list[Text]:
    """Blocks that fared alike on one line."""
    rows: list[list[str | Text]] = []
    for cls, names, counts in view.block_rows()[:MAX_BLOCKS]:
        facts = [plural(counts[kind], noun) for kind, noun in _NOUNS if counts[kind]]
        style = (
            "red"
            if counts["limit_hit"] or counts["error"]
            else "yellow"
            if counts["recompile"] or counts["graph_break"]
            else "green"
        )
        rows.append(
            [
                f"{len(names)} x {cls}",
                fold_names(names),
                Text(", ".join(facts) or "shares compiled code", style=style),
            ]
        )
    return table_lines(rows)


_NOUNS = (
    ("compile", "compile"),
    ("recompile", "recompile"),
    ("graph_break", "graph break"),
    ("limit_hit", "limit hit"),
    ("error", "error"),
)
