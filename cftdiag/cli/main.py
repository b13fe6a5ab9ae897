"""The group of verbs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from cftdiag import __version__
from cftdiag.cli.invoke import Interrupted, invoke
from cftdiag.cli.options import debug_option
from cftdiag.report import stream

#: Verb -> (module with a command of the verb's name, one-line help). The help is here so that listing the
#: verbs imports none of them.
VERBS = {
    "check": (
        "cftdiag.cli.check",
        "Before training: per block, will it capture whole, what will recompile, what to change.",
    ),
    "explain": ("cftdiag.cli.explain", "What a cause means, an example that triggers it, the fix."),
    "fix": ("cftdiag.cli.fix", "The mechanical remedies of a check as a patch, each proved."),
    "models": ("cftdiag.cli.models", "The catalogue of model configurations that check knows by name."),
    "doctor": ("cftdiag.cli.doctor", "What works on this machine and with this torch."),
    "run": ("cftdiag.cli.run", "Watch an unmodified training script, all its ranks."),
    "bench": (
        "cftdiag.cli.bench",
        "Train with and without torch.compile, side by side: what it gains here, and when it has paid.",
    ),
    "watch": ("cftdiag.cli.watch", "Live view of a run directory."),
    "kernels": (
        "cftdiag.cli.kernels",
        "The generated code, kernel by kernel, for a device that need not be there.",
    ),
    "diff": (
        "cftdiag.cli.diff",
        "What changed between two checks, runs, kernels reports or plans.",
    ),
    "upgrade": ("cftdiag.cli.upgrade", "The same check with another torch: what will break or get slower."),
    "cache": ("cftdiag.cli.cache", "Compile caches: what is there, its age and size, whether it will hit."),
    "report": (
        "cftdiag.cli.report",
        "Render a saved check, a run or a TORCH_TRACE directory: terminal, JSON, Markdown, HTML, SARIF, JUnit.",
    ),
}


class LazyGroup(click.Group):
    """A group that imports a verb's module when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        return getattr(importlib.import_module(VERBS[cmd_name][0]), cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Exit codes: 0 nothing at or above --fail-on, 1 findings at or above it, 2 bad input, 3 this environment cannot do it or no conclusion.",
)
@click.version_option(__version__, prog_name="cftdiag")
@debug_option
def cli() -> None:
    """Know before you train whether torch.compile will hold; see the moment it stops holding; know what to
    change.
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with ``args`` (default: the process's own) and exit."""
    stream.prepare()
    sys.exit(run(args))


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line with ``args`` and return its exit code."""
    return invoke(cli, args, prog="cftdiag")
