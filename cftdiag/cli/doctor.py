"""``cftdiag doctor``: what works here."""

from __future__ import annotations

import json

import click

from cftdiag.cli.options import debug_option, json_flag
from cftdiag.report import stream


@click.command(short_help="What works on this machine and with this torch.")
@json_flag
@debug_option
def doctor(as_json: bool) -> int:
    """Show versions, devices and compilers, and test on this torch what the check relies on.

    The self-test provokes a graph break, a recompile and a limit hit and reads them back. Exit code 3 when
    the check cannot work here.
    """
    from cftdiag.doctor import examine

    state = examine()
    if as_json:
        stream.write(json.dumps(state, indent=2))
    else:
        from cftdiag.report import tables

        tables.show_doctor(state)
    return 0 if state["works"] else 3
