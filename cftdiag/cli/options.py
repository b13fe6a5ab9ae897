"""Options and parameter types that several verbs share; the same name means the same everywhere."""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from cftdiag.options import ATTENTIONS, DTYPE_ALIASES, DTYPES, DYNAMIC, FAIL_ON
from cftdiag.report import stream

#: ``text`` is the report for people; the others are those of :mod:`cftdiag.report.ci`.
OUTPUT_FORMATS = ("text", "concise", "github", "gitlab")

F = TypeVar("F", bound=Callable[..., Any])


@dataclasses.dataclass
class State:
    """What the whole invocation shares."""

    debug: bool = False
    """Show the traceback of an error."""
    arguments: tuple[str, ...] = ()
    """What was asked, as on the command line."""


def _set_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(State).debug = True


def debug_option(function: F) -> F:
    """``--debug``, accepted before and after the verb; read eagerly so that a bad option after it shows its
    traceback too.
    """
    return click.option(
        "--debug",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_set_debug,
        help="Show the traceback of an error.",
    )(function)


def json_flag(function: F) -> F:
    """``--json`` as a plain flag: JSON on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def fail_on_option(function: F) -> F:
    """``--fail-on``: the lowest severity that makes the exit code 1."""
    return click.option(
        "--fail-on",
        type=click.Choice(FAIL_ON),
        default="error",
        show_default=True,
        help="Lowest severity that makes the exit code 1.",
    )(function)


def output_format(function: F) -> F:
    """``--output-format``: what stdout says of a check."""
    return click.option(
        "--output-format",
        type=click.Choice(OUTPUT_FORMATS),
        default="text",
        show_default=True,
        help="What to print: the report; a line a finding; GitHub's annotations; GitLab's code quality JSON.",
    )(function)


def json_file(function: F) -> F:
    """``--json FILE|-``."""
    return click.option(
        "--json",
        "json_path",
        metavar="FILE|-",
        help="Write the report as JSON to FILE, or to stdout alone with -.",
    )(function)


class Lengths(click.ParamType):
    """``512,640,777`` as a tuple of positive integers."""

    name = "N,N,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            lengths = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a comma-separated list of lengths, such as 512,640,777", param, ctx)
        if any(length < 1 for length in lengths):
            self.fail(f"a length must be at least 1, not {min(lengths)}", param, ctx)
        return lengths


class Seconds(click.FloatRange):
    """A finite number of seconds within a range."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


class Layers(click.ParamType):
    """``all``, ``auto`` or a positive integer, as text."""

    name = "all|auto|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text not in ("all", "auto") and not (text.isascii() and text.isdigit() and int(text) > 0):
            self.fail(f"{text!r} is neither all, auto nor a positive number of layers", param, ctx)
        return text


def check_writable(*paths: str | None) -> None:
    """Refuse files that cannot be written, and more than one ``-``, before the work is done and not after it."""
    one_to_stdout(paths)
    for path in paths:
        if path is not None and path != "-":
            _refuse_unwritable(path)


def one_to_stdout(paths: Iterable[str | None]) -> None:
    """Refuse more than one ``-`` among the files of an answer's forms."""
    if sum(path == "-" for path in paths) > 1:
        raise click.UsageError("only one form can go to stdout; give the others a file")


def _refuse_unwritable(path: str) -> None:
    target = Path(path)
    if target.is_dir():
        raise click.UsageError(f"cannot write {path}: it is a directory; name a file in it")
    if not target.parent.is_dir():
        raise click.UsageError(f"cannot write {path}: there is no directory {target.parent}; make it first")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise click.UsageError(f"cannot write {path}: permission denied; name another file")


class Setting(click.ParamType):
    """``torch._inductor.config.NAME=VALUE`` as (name, value); the value is a Python literal, or text."""

    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name.startswith("torch.") or "config." not in name:
            self.fail(
                f"{value!r} is no torch setting, such as torch._dynamo.config.recompile_limit=16", param, ctx
            )
        try:
            return name, ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return name, text


def dynamic_option(default: str) -> Callable[[F], F]:
    """``--dynamic``; ``default`` is what holds without it, in words."""
    return click.option(
        "--dynamic",
        type=click.Choice(list(DYNAMIC)),
        help=f"Dynamic shapes; auto is torch's None.  [default: {default}]",
    )


def settings_option(help: str) -> Callable[[F], F]:
    """``--set``, as ``torch_config``: pairs of a setting's name and its value."""
    return click.option("--set", "torch_config", type=Setting(), multiple=True, help=help)


MODEL_HELP = "A name of `cftdiag models`, a directory, a config.json, a hub id, or file.py:build."
attention_option = click.option(
    "--attn", type=click.Choice(ATTENTIONS), help="Attention implementation.  [default: sdpa]"
)
dtype_option = click.option(
    "--dtype",
    type=click.Choice([*DTYPES, *DTYPE_ALIASES]),
    metavar="DTYPE",
    help="Data type of the model.  [default: bfloat16]",
)
batch_size_option = click.option(
    "--batch-size", type=click.IntRange(min=1), metavar="N", help="Rows per forward.  [default: 1]"
)
padding_option = click.option(
    "--pad-to-multiple-of",
    type=click.IntRange(min=1),
    metavar="N",
    help="Round each length up to a multiple of N, as the collator would.",
)
markdown_option = click.option(
    "--markdown",
    "markdown_path",
    metavar="FILE|-",
    help="Write Markdown, for a pull request or a job summary.",
)


def write_text(path: str, text: str) -> None:
    """Write ``text`` to a file, or to stdout for ``-``; a file that cannot be written is the user's to mend."""
    if path == "-":
        stream.write(text)
        return
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as out:
            out.write(text if text.endswith("\n") else text + "\n")
    except OSError as error:
        raise click.UsageError(
            f"cannot write {path}: {error.strerror or error}; name another file"
        ) from error


def write_json(path: str, data: Any) -> None:
    """Write ``data`` as indented JSON to a file, or to stdout for ``-``."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=True))
