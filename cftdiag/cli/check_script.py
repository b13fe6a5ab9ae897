"""``cftdiag check [OPTIONS] -- COMMAND``: the options that only a command has, and those that it shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from cftdiag.check import CheckReport
    from cftdiag.check.runner import Progress
    from cftdiag.check.script import ScriptOptions

Command = TypeVar("Command", bound=Callable[..., Any])

#: Options of a check that mean the same for a command; all others are the script's own to decide.
SHARED = frozenset(
    {
        "world_size", "depth", "target", "routing", "torch_config", "timeout", "verify", "verify_budget", "fail_on",
        "json_path", "quiet", "debug", "command", "baseline", "write_baseline", "output_format", "plan_path", "plots",
    }
)  # fmt: skip
OWN = frozenset({"steps", "ranks", "weights", "keep"})


class WithCommand(click.Command):
    """A verb that takes a training command, but only behind ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse words that are neither options nor behind ``--``, as for a verb without arguments."""
        divided = "--" in args
        behind = len(args) - args.index("--") - 1 if divided else 0
        rest = super().parse_args(ctx, args)
        words: tuple[str, ...] = ctx.params.get("command") or ()
        if len(words) > behind:
            raise click.UsageError(
                f"Got unexpected extra argument ({words[0]}); a training command goes behind --"
            )
        if divided and not behind and not ctx.resilient_parsing:
            raise click.UsageError(
                "no command behind --; give the one that trains: cftdiag check -- python train.py"
            )
        return rest


class Ranks(click.ParamType):
    """``0,63``: ranks, each once."""

    name = "ranks"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The ranks of the text, in its order."""
        if isinstance(value, tuple):
            return value
        words = str(value).split(",")
        if not all(word.strip().isdigit() for word in words):
            self.fail(f"{value!r} is no list of ranks; give for example 0,63", param, ctx)
        return tuple(dict.fromkeys(int(word) for word in words))


def options(function: Command) -> Command:
    """The options that only a command has, and the command itself."""
    for decorate in (
        click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARGS]...]"),
        click.option(
            "--keep",
            type=click.Path(file_okay=False),
            metavar="DIR",
            help="With a command: keep what it wrote and printed in DIR.",
        ),
        click.option(
            "--weights", is_flag=True, help="With a command: load the real weights and compute with them."
        ),
        click.option(
            "--rank",
            "ranks",
            type=Ranks(),
            default="0",
            show_default=True,
            help="With a command: ranks to rehearse, 0,63 for example; several are compared.",
        ),
        click.option(
            "--steps",
            type=click.IntRange(min=1),
            default=30,
            show_default=True,
            help="With a command: optimizer steps to rehearse.",
        ),
    ):
        function = decorate(function)
    return function


def refuse_others() -> None:
    """Raise for an option that a command decides by itself."""
    for name, flag in _given():
        if name == "fit" or name == "compile_scope" and click.get_current_context().params[name] == "all":
            continue  # what the script compiles, beside the same without
        if name not in SHARED | OWN:
            raise click.UsageError(f"{flag} is decided by the command behind --; change it there")


def refuse_own() -> None:
    """Raise for an option that only a command has."""
    for name, flag in _given():
        if name in OWN:
            raise click.UsageError(f"{flag} rehearses a training command; give one behind --")


def _given() -> list[tuple[str, str]]:
    """(name, flag) of what the command line gives."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    return [
        (param.name, param.opts[0])
        for param in context.command.params
        if param.name is not None and context.get_parameter_source(param.name) == source
    ]


def asked(command: tuple[str, ...], options: Mapping[str, Any], *, count: bool, **own: Any) -> ScriptOptions:
    """The rehearsal that the command line asks for; ``count`` for what the step gains and takes."""
    from cftdiag.check.script import ScriptOptions

    context = click.get_current_context()
    given = context.get_parameter_source("world_size") == click.core.ParameterSource.COMMANDLINE
    shared = ("depth", "target", "routing", "timeout", "verify", "verify_budget")
    return ScriptOptions(
        command=command,
        world_size=options["world_size"] if given else None,
        torch_config=dict(options["torch_config"]),
        count=count,
        **{name: options[name] for name in shared},
        **own,
    )


def run(script: ScriptOptions, progress: Progress) -> CheckReport:
    """Rehearse and report."""
    from cftdiag.check.script_check import check_script

    return check_script(script, progress)
