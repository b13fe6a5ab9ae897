"""The command line: one file a verb, imported when the verb is used.

``--help``, ``models`` and ``explain`` import no torch. Exit codes: 0 nothing at or above ``--fail-on``, 1
findings at or above it, 2 bad input, 3 this environment cannot do it or no conclusion (an interrupt
included). An error is one line on stderr.
"""

from cftdiag.cli.main import main

__all__ = ["main"]
