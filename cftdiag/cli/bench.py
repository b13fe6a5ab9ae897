"""``cftdiag bench``: the same training with and without torch.compile, measured side by side."""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cftdiag.cli import check_script, early
from cftdiag.cli.invoke import Interrupted
from cftdiag.cli.options import (
    Layers,
    Lengths,
    Seconds,
    check_writable,
    debug_option,
    json_file,
    write_json,
)
from cftdiag.errors import CheckError, EnvironmentUnfit, InputError
from cftdiag.options import ATTENTIONS, DTYPE_ALIASES, DTYPES, CheckOptions

if TYPE_CHECKING:
    from cftdiag.bench.arms import Arm
    from cftdiag.bench.driver import Command

#: What a trainer brings to the comparison of its configuration, as a module; nothing else here knows of one.
TRAINER = "trainer"
ARMS_OF_CONFIG = "trainer.bench"
APPLY_METHOD = "trainer.preflight:as_method"
FIELDS = ("parameters", "optimizer", "batches", "loss")
_OF_MODEL = ("attn", "dtype", "batch_size", "lengths", "layers", "blocks", "trust_remote_code")


@click.command(
    cls=check_script.WithCommand,
    short_help="Train with and without torch.compile, side by side: gain, memory, break-even step.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="Train this model, new weights: a name of `cftdiag models`, a directory, a config.json, a hub id, or file.py:build.",
)
@click.option(
    "--config",
    "config_path",
    metavar="RUN.YAML",
    help="Train what `python -m trainer --config RUN.YAML` does.",
)
@click.option(
    "--arm",
    "arm_texts",
    multiple=True,
    metavar="ARM",
    help="What to compare with eager; may be repeated. Of a model or configuration a scope and changes: block+loss,ac=full "
    "(keys scope, dynamic, ac, method, pad, backend), or all: every scope. Of a command a name and what it adds: "
    "'padded: VARIABLE=1 --pad-to-multiple-of 64'.  [default: block, the configuration's own, the command as it is]",
)
@click.option(
    "--steps",
    type=click.IntRange(min=2),
    default=12,
    show_default=True,
    help="Optimizer steps of each arm in each round.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Steps at the begin that are not compared.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="How often each arm is started: first with empty compile caches, then with those that it has filled.",
)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes that torchrun starts, with --model or --config.",
)
@click.option(
    "--turns",
    type=click.Choice(("auto", "step", "run")),
    default="auto",
    show_default=True,
    help="step: all arms are alive and take turns after each step; run: one run after the other, where memory holds one. "
    "auto: run on a machine with a GPU.",
)
@click.option(
    "--allow-different",
    "allowed",
    type=click.Choice(FIELDS),
    multiple=True,
    help="Compare although arms differ in this; may be repeated.",
)
@click.option(
    "--attn", type=click.Choice(ATTENTIONS), help="With --model: attention implementation.  [default: sdpa]"
)
@click.option(
    "--dtype",
    type=click.Choice([*DTYPES, *DTYPE_ALIASES]),
    metavar="DTYPE",
    help="With --model: data type.  [default: bfloat16 on a GPU, else float32]",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), help="With --model: rows per step and rank.  [default: 1]"
)
@click.option(
    "--lengths",
    type=Lengths(),
    help="With --model: sequence lengths, one a step, over and over.  [default: 512]",
)
@click.option("--layers", type=Layers(), help="With --model: layers to build.  [default: all]")
@click.option("--blocks", multiple=True, metavar="GLOB", help="With --model: modules to compile one by one.")
@click.option("--trust-remote-code", is_flag=True, help="With --model: run Python code that comes with it.")
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True),
    default=1800,
    show_default=True,
    help="Seconds that a start with its first step, or any step, may take.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep run directories and output in DIR.",
)
@click.option(
    "--plots",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Draw step times and the break-even step into DIR.",
)
@json_file
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@debug_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARGS]...]")
def bench(
    model: str | None,
    config_path: str | None,
    command: tuple[str, ...],
    arm_texts: tuple[str, ...],
    steps: int,
    warmup: int,
    rounds: int,
    ranks: int,
    turns: str,
    allowed: tuple[str, ...],
    timeout: float,
    keep: Path | None,
    plots: Path | None,
    json_path: str | None,
    quiet: bool,
    **options: Any,
) -> int:
    """Train on this machine without and with torch.compile and say what compiling gains and when it has paid.

    Every arm is a fresh process. Arms take turns and their steps are compared in pairs, so that a slow minute of
    the machine hits them alike. Runs that differ in more than the arm are not compared.

    A command is run as it is, and once more with torch.compile switched off (TORCH_COMPILE_DISABLE=1, TORCHDYNAMO_DISABLE=1).
    """
    from cftdiag.bench import arms as arm_words
    from cftdiag.bench import driver, summary
    from cftdiag.passes.messages import ProgressEvent
    from cftdiag.report import bench as view
    from cftdiag.report import status_line
    from cftdiag.report.console import console_for

    if [model is not None, config_path is not None, bool(command)].count(True) != 1:
        raise InputError("give one of --model, --config and a command behind --: what is to be trained")
    if warmup >= steps:
        raise InputError(f"--warmup {warmup} leaves nothing of {steps} steps to compare; give more --steps")
    _refuse_others(model, command)
    check_writable(json_path)
    for folder in (keep, plots):
        _make(folder)
    early.refuse_config(config_path)
    if command:
        arms = arm_words.of_command(arm_texts)
        start = functools.partial(_of_command, command)
        subject = " ".join(command)
    elif config_path is not None:
        module = importlib.import_module(ARMS_OF_CONFIG)
        scope = _as_input_error(module.own_scope, config_path)
        arms = arm_words.of_options(arm_texts, own_scope=scope)
        start = functools.partial(_of_config, config_path, module, steps, ranks)
        subject = config_path
    else:
        assert model is not None
        early.refuse_source(model)
        early.refuse_sizes(options["batch_size"], options["lengths"])
        arms = arm_words.of_options(arm_texts)
        start = functools.partial(_of_model, model, options, steps, ranks)
        subject = model
        start(arms[-1], 0, Path())  # what is wrong with it is told before anything runs
    together = turns == "step" or (turns == "auto" and not _has_gpu())
    plan = driver.Plan(
        arms=arms,
        command=start,
        steps=steps,
        warmup=warmup,
        rounds=rounds,
        together=together,
        timeout=timeout,
        keep=None if keep is None else keep.absolute(),
    )
    # a job that is cancelled ends like one that is interrupted: children stopped, what ran shown
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with status_line.progress(sys.stderr, quiet=quiet) as on_progress:
        runs, interrupted = driver.run(
            plan, lambda text: on_progress(ProgressEvent(phase="bench", text=text))
        )
    what = {"subject": subject, "together": together, "rounds": rounds, "steps": steps}
    data = summary.to_dict(arms, runs, what=what, warmup=warmup, allowed=allowed, interrupted=interrupted)
    if json_path != "-" and runs:
        view.show(console_for(), data)
    if json_path is not None:
        write_json(json_path, data)
    if plots is not None:
        from cftdiag.report.bench_plot import save

        for path in save(data, plots):
            click.echo(f"wrote {path}", err=True)
    return _conclusion(data, runs, arms)


def _conclusion(data: Mapping[str, Any], runs: Sequence[Any], arms: Sequence[Arm]) -> int:
    """0 where every arm was compared; raises what the exit code and its line are made of."""
    from cftdiag.bench import driver

    if data["interrupted"]:
        raise Interrupted("interrupted; the table is of the steps that ran")
    for arm in arms:
        driver.require(runs, arm.name)
    apart = next((arm for arm in data["arms"] if arm["differs"]), None)
    if apart is not None:
        raise InputError(
            f"arm {apart['arm']} differs from eager in more than it should: {'; '.join(apart['differs'])}; make them alike, or "
            "allow it with --allow-different batches, loss, optimizer or parameters"
        )
    if any(arm["failed"] for arm in data["arms"]):
        failed = next(arm for arm in data["arms"] if arm["failed"])
        raise EnvironmentUnfit(f"arm {failed['arm']} ended early: {failed['failed']}")
    if any(arm["arm"] != "eager" and arm["against_eager"] is None for arm in data["arms"]):
        raise EnvironmentUnfit("no pair of steps without compiling; give more --steps")
    return 0


def _refuse_others(model: str | None, command: tuple[str, ...]) -> None:
    context = click.get_current_context()
    given = [
        p
        for p in context.command.params
        if context.get_parameter_source(p.name or "") == click.core.ParameterSource.COMMANDLINE
    ]
    for parameter in given:
        if model is None and parameter.name in _OF_MODEL:
            owner = "the command" if command else "the configuration"
            raise InputError(f"{parameter.opts[0]} is decided by {owner}; change it there")
        if command and parameter.name == "ranks":
            raise InputError("--ranks starts torchrun for --model and --config; put it into the command")


def _make(folder: Path | None) -> None:
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {folder}: {error.strerror or error}; name another") from error


def _as_input_error(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return function(*arguments, **named)
    except CheckError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error


def _has_gpu() -> bool:
    """Asked without torch: a context would take memory from those that are measured."""
    return os.path.exists("/dev/nvidia0") or os.path.exists("/dev/kfd")


# ---- how an arm is started ----


def _of_command(words: Sequence[str], arm: Arm, number: int, folder: Path) -> Command:
    from cftdiag.bench.driver import Command

    return Command(words=[*words, *arm.arguments], env=arm.env)


def _of_config(
    path: str, module: Any, steps: int, ranks: int, arm: Arm, number: int, folder: Path
) -> Command:
    from cftdiag.bench.driver import Command

    written = _as_input_error(module.write_arm, path, arm.changes, folder, steps=steps)
    launcher = (
        [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    )
    return Command(
        words=[sys.executable, *launcher, "-m", TRAINER, "--config", str(written)],
        tokens=functools.partial(module.tokens, folder),
    )


def _of_model(
    model: str, options: Mapping[str, Any], steps: int, ranks: int, arm: Arm, number: int, folder: Path
) -> Command:
    from cftdiag.bench.driver import Command
    from cftdiag.subject import resolve

    changes = arm.changes
    asked = {name: options[name] for name in _OF_MODEL if options[name]}
    from_config = resolve(model).from_config
    if from_config:
        asked.setdefault("lengths", (512,))
    asked |= {key: changes[key] for key in ("dynamic", "ac") if key in changes}
    if changes.get("method", "full") != "full":
        asked |= {"method": changes["method"], "transform": APPLY_METHOD}
    CheckOptions(model=model, compile_scope=changes["scope"], fast_forward="never", **asked)
    spec = {
        "model": model,
        "from_config": from_config,
        "options": asked,
        "scope": changes["scope"],
        "pad": changes.get("pad"),
        "backend": changes.get("backend"),
        "steps": steps + 1,  # the gate ends it
        "ranks": ranks,
    }
    launcher = (
        [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    )
    return Command(words=[sys.executable, *launcher, "-m", "cftdiag.bench.worker", json.dumps(spec)])
