"""The command line, made from the fields of :class:`trainer.TrainConfig`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from trainer.config import EXIT_INTERRUPTED, TrainConfig, read_yaml


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(message)


def parse(arguments: Sequence[str]) -> tuple[TrainConfig, bool]:
    """The configuration (flags win over the YAML file of ``--config``), and whether mistakes are shown with
    their traceback.

    Raises ``ValueError``; exits for ``--help`` and for malformed flags.
    """
    parser = _Parser(
        prog="python -m trainer",
        description="Fine-tune a causal language model; run by torchrun, on one rank without it.",
    )
    parser.add_argument("--config", metavar="FILE", help="YAML with the names of these flags")
    parser.add_argument("--debug", action="store_true", help="show the traceback of a mistake")
    for field in dataclasses.fields(TrainConfig):
        _add(parser, field)
    given = vars(parser.parse_args(arguments))
    path, debug = given.pop("config", None), given.pop("debug")
    return TrainConfig.from_mapping({**(read_yaml(path) if path else {}), **given}), debug


def _add(parser: argparse.ArgumentParser, field: dataclasses.Field[Any]) -> None:
    flag = "--" + field.name.replace("_", "-")
    default = f" (default: {field.default})" if field.default not in (None, (), False, True) else ""
    options: dict[str, Any] = {
        "dest": field.name,
        "default": argparse.SUPPRESS,
        "help": (field.metadata["help"] + default).replace("%", "%%"),
    }
    kind = str(field.type)
    if kind == "bool":
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
    elif kind.startswith("tuple"):
        parser.add_argument(
            flag, metavar="A,B", action="extend", type=_integers if "int" in kind else _texts, **options
        )
    else:
        types: dict[str, Any] = {"int": int, "float": float, "str": str}
        choices = field.metadata["choices"]
        # Choices are checked by the configuration, which also knows the short names of dtypes.
        metavar = "|".join(choices) if choices else None
        parser.add_argument(flag, type=types[kind.removesuffix(" | None")], metavar=metavar, **options)


def _texts(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, _texts(text)))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers such as 512,1024") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code is 0, 2 for a user's mistake, 85 after a signal and its checkpoint, or 130 after
    Ctrl-C.
    """
    debug = False
    try:
        config, debug = parse(sys.argv[1:] if arguments is None else arguments)
        from trainer.loop import run
        from trainer.signals import EXIT_STOPPED

        if run(config).stopped:
            return EXIT_STOPPED
    except (ValueError, FloatingPointError, OSError) as error:
        if debug:
            raise
        _fail(str(error))
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print(
                "error: interrupted; checkpoints written before are kept, continue with --resume auto",
                file=sys.stderr,
                flush=True,
            )
        return EXIT_INTERRUPTED
    return 0


def _fail(message: str) -> NoReturn:
    rank = os.environ.get("RANK", "0")
    if rank != "0":
        # As a rule every rank meets the same mistake, and torchrun ends the others once rank 0 has said so.
        # What only this rank met is said too.
        time.sleep(5)
        message = f"rank {rank}: {message}"
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(2)
