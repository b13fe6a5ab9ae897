"""``cftdiag watch``: the live view of a run directory."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from cftdiag.cli.options import Seconds, debug_option


@click.command(short_help="Live view of a run directory.")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print the present state and end.")
@click.option(
    "--wait",
    type=Seconds(min=0),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait for the directory to appear.",
)
@debug_option
def watch(run: Path, once: bool, wait: float) -> int:
    """Show a run while it trains: steps a second, compiles in flight by rank, who waits for whom, the last
    recompiles with cause and fix.

    Ends when the run ends, or with Ctrl-C. The run notices nothing of it: the directory is only read.
    """
    from cftdiag.monitor import is_run
    from cftdiag.monitor.run_state import View
    from cftdiag.report import watch_screen as screen

    deadline = time.monotonic() + (0.0 if once else wait)
    told = once or is_run(run)
    while not is_run(run):
        if time.monotonic() >= deadline:
            raise click.UsageError(
                f"{run}: no run directory; give the directory that cftdiag run or cftdiag.Monitor writes"
            )
        if not told:
            told = True
            click.echo(f"waiting for {run}, {wait:.0f} s at most", err=True)
        time.sleep(0.2)
    view = View(run)
    view.refresh()
    if once:
        screen.show(view)
        return 0
    try:
        screen.follow(view)
    except KeyboardInterrupt:
        sys.stdout.flush()
    return 0
