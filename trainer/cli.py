"""The command line, made from the fields of :class:`trainer.TrainConfig`."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from cftdiag.cli.invoke import Interrupted, invoke, tell
from cftdiag.cli.options import debug_option
from trainer.config import EXIT_INTERRUPTED, NOT_THERE, TrainConfig, over, read_yaml
from trainer.signals import EXIT_STOPPED, SIGNALS, StopSignals

#: The installed script, beside ``python -m trainer`` and ``torchrun -m trainer``.
SCRIPT = "cftdiag-train"


class Listed(click.ParamType):
    """``A,B`` as a tuple of texts or whole numbers; the option may be repeated."""

    name = "A,B"

    def __init__(self, inner: type[int] | type[str]) -> None:
        self._inner = inner

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._inner(part) for part in str(value).split(",") if part)
        except ValueError:
            self.fail(f"{value!r} is not a list of integers such as 512,1024", param, ctx)


class Suggested(click.ParamType):
    """Text of which the shell completes some values. The configuration decides: it also knows short names."""

    name = "TEXT"

    def __init__(self, choices: Sequence[str]) -> None:
        self._choices = choices

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(choice) for choice in self._choices if choice.startswith(incomplete)]


def _option(field: dataclasses.Field[Any]) -> click.Option:
    flag = "--" + field.name.replace("_", "-")
    # What is not given is not set here, so that a configuration file can say it.
    default = f" (default: {field.default})" if field.default not in (None, (), False, True) else ""
    text = field.metadata["help"] + default
    kind = str(field.type).removesuffix(" | None")
    if kind == "bool":
        return click.Option([f"{flag}/--no-{flag[2:]}"], default=None, help=text)
    if kind.startswith("tuple"):
        return click.Option([flag], type=Listed(int if "int" in kind else str), multiple=True, help=text)
    if choices := field.metadata["choices"]:
        return click.Option([flag], type=Suggested(choices), metavar="|".join(choices), help=text)
    if kind == "str" and field.name.endswith(("path", "_dir", "_plan", "_cache")):
        return click.Option([flag], type=click.Path(), help=text)
    return click.Option([flag], type={"int": int, "float": float, "str": str}[kind], help=text)


def command(signals: StopSignals | None = None) -> click.Command:
    """The command: an option for each field, ``--config`` and ``--debug``. ``signals`` are listened to already."""
    made = click.Command(
        "trainer",
        callback=functools.partial(_train, signals or StopSignals()),
        params=[
            click.Option(["--config"], type=click.Path(), metavar="FILE", help="YAML with the names of these flags"),
            *(_option(field) for field in dataclasses.fields(TrainConfig)),
            # known, so that the configuration says why they are not there
            *(click.Option(["--" + name.replace("_", "-")], hidden=True) for name in NOT_THERE),
        ],
        help="Fine-tune a causal language model; run by torchrun, on one rank without it.",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )  # fmt: skip
    return debug_option(made)


def parse(arguments: Sequence[str]) -> TrainConfig:
    """The configuration; flags win over the YAML file of ``--config``. Raises ``ValueError`` for values that
    contradict each other, ``click.UsageError`` for malformed flags.
    """
    return configuration(command().make_context("trainer", list(arguments)))


def configuration(context: click.Context) -> TrainConfig:
    """What a parsed command line says."""
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    path = given.pop("config", None)
    lists = {f.name for f in dataclasses.fields(TrainConfig) if str(f.type).startswith("tuple")}
    flat = {
        name: tuple(part for parts in value for part in parts) if name in lists else value
        for name, value in given.items()
    }
    return TrainConfig.from_mapping(over(read_yaml(path) if path else {}, flat))


def _train(signals: StopSignals, **_options: Any) -> int:
    try:
        config = configuration(click.get_current_context())
        code = signals.starting(Path(config.output_dir), lambda: _run(config, signals))
        return EXIT_STOPPED if code is None else code
    except KeyboardInterrupt as error:
        raise _Stopped from error


def _run(config: TrainConfig, signals: StopSignals) -> int:
    from trainer.loop import run

    return EXIT_STOPPED if run(config, signals).stopped else 0


class _Stopped(Interrupted):
    exit_code = EXIT_INTERRUPTED

    def __init__(self) -> None:
        super().__init__("interrupted; checkpoints written before are kept, continue with --resume auto")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code is 0, 2 for a user's mistake, 85 after a signal and its checkpoint, or 130 after
    Ctrl-C.
    """
    mistakes = (ValueError, FloatingPointError, OSError)
    with StopSignals() as signals:
        return invoke(
            command(signals),
            arguments,
            prog=_program(),
            mistakes=mistakes,
            tell=_tell,
            bugs_in_a_line=False,
            interrupted=_Stopped,
        )


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run with ``arguments`` (default: the process's own) and exit."""
    code = run(arguments)
    if code == EXIT_STOPPED:
        for number in SIGNALS:  # one that comes while the interpreter ends must not change the code
            signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _program() -> str:
    """How this was started. The installed script is the one that a shell can complete."""
    return SCRIPT if os.path.basename(sys.argv[0]) == SCRIPT else "python -m trainer"


def _tell(message: str) -> None:
    rank = os.environ.get("RANK", "0")
    if rank != "0":
        if message.startswith("interrupted"):
            return
        # As a rule every rank meets the same mistake, and torchrun ends the others once rank 0 has said so.
        # What only this rank met is said too.
        time.sleep(5)
        message = f"rank {rank}: {message}"
    tell(message)
