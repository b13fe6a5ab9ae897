"""``cftdiag run``: watch an unmodified training script, all its ranks."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from cftdiag.cli.options import Seconds, debug_option


@click.command(
    short_help="Watch an unmodified training script, all its ranks.",
    context_settings={"ignore_unknown_options": True},
)
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Run directory to write.  [default: cftdiag-run-DATE-TIME]",
)
@click.option(
    "--max-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="End every rank, with exit code 0, after N optimizer steps.",
)
@click.option(
    "--warmup-steps",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Steps in which recompiles are expected.",
)
@click.option(
    "--on-recompile",
    type=click.Choice(("warn", "raise")),
    default="warn",
    show_default=True,
    help="What a recompile after warm-up does.",
)
@click.option(
    "--plan",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Plan of cftdiag check: a recompile outside it sets off an alarm.",
)
@click.option(
    "--compile-budget",
    "compile_budget_s",
    type=Seconds(min=0, min_open=True),
    metavar="S",
    help="Alarm above S seconds of compiling.",
)
@click.option(
    "--guards",
    is_flag=True,
    help="Count guard misses per block and cache entry (costs tens of us a compiled call).",
)
@click.option(
    "--guards-every",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Sample the failing guard each N-th miss.",
)
@click.option(
    "--payloads", "keep_payloads", is_flag=True, help="Keep graphs and generated code in the run directory."
)
@click.option("--trace", is_flag=True, help="Keep torch's raw structured trace too (RUN/trace, for tlparse).")
@click.option("--tensorboard", metavar="DIR", help="Write scalars for TensorBoard (rank 0).")
@click.option("--wandb", metavar="PROJECT", help="Log scalars to Weights & Biases (rank 0).")
@click.option(
    "--exchange",
    type=click.Choice(("auto", "store", "none")),
    default="auto",
    show_default=True,
    help="How ranks without a shared disk meet.",
)
@click.option(
    "--eager-step-seconds",
    "eager_step_s",
    type=Seconds(min=0, min_open=True),
    metavar="S",
    help="An eager step, for the break-even.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing of our own.")
@debug_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...")
def run(
    command: tuple[str, ...],
    run_dir: Path | None,
    guards: bool,
    guards_every: int,
    trace: bool,
    tensorboard: str | None,
    wandb: str | None,
    eager_step_s: float | None,
    quiet: bool,
    **options: Any,
) -> int:
    """Run a training command and watch torch.compile in each of its ranks.

    The command is not changed: python train.py, torchrun train.py, accelerate launch train.py. Its output,
    its exit code and the signals sent to it pass through; each recompile, graph break and limit hit is told
    on stderr as it happens, and kept in the run directory.
    """
    from cftdiag.monitor import launch
    from cftdiag.monitor.narrate import Narrator
    from cftdiag.monitor.plan_match import Planned

    directory = (run_dir or Path(time.strftime("cftdiag-run-%Y%m%d-%H%M%S"))).absolute()
    settings: dict[str, Any] = {**options, "guards": guards_every if guards else 0}
    if eager_step_s is not None:
        settings["settings"] = {"eager_step_s": eager_step_s}
    sinks = {name: value for name, value in (("tensorboard", tensorboard), ("wandb", wandb)) if value}
    if sinks:
        settings["sinks"] = sinks
    try:
        if options["plan"] is not None:
            Planned.load(options["plan"])
            settings["plan"] = str(Path(options["plan"]).absolute())
        launch.prepare(directory, command, settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    narrator = Narrator(directory, quiet=quiet)
    try:
        narrator.start()
        code = launch.run(command, launch.environment(directory, settings, trace=trace), narrator.poll)
    except OSError as error:
        launch.discard(directory)
        raise click.UsageError(
            f"cannot start {command[0]}: {error.strerror or error}; check the command after --"
        ) from error
    launch.note_end(directory, code)
    narrator.end(code)
    if code < 0:
        launch.exit_like(code)
    sys.stdout.flush()
    return code
