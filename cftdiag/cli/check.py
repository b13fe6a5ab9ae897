"""``cftdiag check``: before training, per block, will it capture whole, what will recompile, what to change."""

from __future__ import annotations

import dataclasses
import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click

from cftdiag.cli import check_script, early, gate_options
from cftdiag.cli import repro as repro_files
from cftdiag.cli.options import (
    MODEL_HELP,
    Layers,
    Lengths,
    Seconds,
    State,
    attention_option,
    batch_size_option,
    check_writable,
    debug_option,
    dtype_option,
    dynamic_option,
    fail_on_option,
    json_file,
    output_format,
    padding_option,
    settings_option,
    write_json,
    write_text,
)
from cftdiag.errors import CheckError, InputError
from cftdiag.forecast.lengths import OVER_LONG
from cftdiag.options import (
    AC_MODES,
    DEFAULT_LENGTHS,
    DEFAULT_TIMEOUT_S,
    DEFAULT_VERIFY_BUDGET_S,
    DEPTHS,
    FAST_FORWARD,
    METHODS,
    OBJECTIVES,
    ROUTING,
    SCOPES,
    CheckOptions,
)
from cftdiag.target import TARGETS
from cftdiag.target.devices import present

#: What a trainer brings to the command line, as module:function; nothing else here knows of one. A check of
#: its configuration file, and a function of (model, method, scope) that turns a plain model into the method's.
CHECK_CONFIG = "trainer.preflight:check_file"
#: ``--compile-scope`` that compares all of them.
ALL_SCOPES = "all"
ALL = f"--compile-scope {ALL_SCOPES}"
APPLY_METHOD = "trainer.preflight:as_method"
#: The same for ``--objective``: a function of its name, which returns loss and batches.
OBJECTIVE = "trainer.preflight:as_objective"

if TYPE_CHECKING:
    from cftdiag.check import CheckReport
    from cftdiag.check.runner import Progress


@click.command(
    cls=check_script.WithCommand,
    short_help="Before training: will each block capture whole, what will recompile.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help=MODEL_HELP,
)
@click.option(
    "--config",
    "config_path",
    metavar="RUN.YAML",
    help="Check what `python -m trainer --config RUN.YAML` would train, instead of --model.",
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="full",
    show_default=True,
    help="Fine-tuning method of the trainer.",
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default="sft",
    show_default=True,
    help="What the trainer learns: its loss and its batches.",
)
@attention_option
@dtype_option
@dynamic_option("true; a Subject's own")
@click.option(
    "--ac",
    type=click.Choice(AC_MODES),
    default="none",
    show_default=True,
    help="Activation checkpointing of each block.",
)
@click.option(
    "--world-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Ranks of FSDP2, over torch's fake process group.",
)
@click.option(
    "--tensor-parallel",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Split the weights of each block over N of the ranks; dense models.",
)
@click.option(
    "--compile-scope",
    type=click.Choice([*SCOPES, ALL_SCOPES]),
    default="block",
    show_default=True,
    help="What is compiled; all: check block, and with --target say what each scope gains and takes.",
)
@click.option(
    "--fit",
    is_flag=True,
    help="With --target: find the largest batch that fits the device under --compile-scope, for each of --lengths; of --config the "
    "longest row, of a command whether its own batch fits.",
)
@click.option(
    "--compile-backend",
    envvar="TORCH_COMPILE_BACKEND",
    metavar="NAME",
    help="torch.compile backend; also read from TORCH_COMPILE_BACKEND.  [default: the depth's own]",
)
@batch_size_option
@click.option(
    "--lengths",
    type=Lengths(),
    help=f"Sequence lengths, in the order met.  [default: {','.join(map(str, DEFAULT_LENGTHS))}]",
)
@padding_option
@click.option("--packed", is_flag=True, help="One row of several documents.")
@click.option("--flash-varlen", is_flag=True, help="Pass cu_seq_lens_q/k and max_length_q/k to the model.")
@click.option(
    "--data",
    metavar="FILE",
    help="Forecast the compiles of these lengths: JSONL (input_ids or len), text, a dataset directory, or the saved check of a command.",
)
@click.option(
    "--max-tokens-per-gpu",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --data: most tokens of one forward of one rank.",
)
@click.option(
    "--shuffle-seed",
    type=int,
    metavar="N",
    help="With --data: the order of training with this seed.  [default: the file's order]",
)
@click.option(
    "--over-long",
    type=click.Choice(OVER_LONG),
    default="fatal",
    show_default=True,
    help="With --data: samples beyond the model's positions.",
)
@click.option("--drop-last", is_flag=True, help="With --data: leave out the last partial batch.")
@click.option(
    "--plan",
    "plan_path",
    metavar="FILE",
    help="With --data or a command: write the compile plan that the trainer and the monitor read.",
)
@repro_files.option
@click.option("--plots", metavar="DIR", help="With --data or a command: draw the regime map into DIR.")
@click.option(
    "--layers",
    type=Layers(),
    help="Layers to build; auto: the fewest that hold every kind of block.  [default: all]",
)
@click.option(
    "--blocks",
    multiple=True,
    metavar="GLOB",
    help="Modules to compile one by one; may be repeated.  [default: the blocks of every stack that the step calls]",
)
@click.option(
    "--depth",
    type=click.Choice(DEPTHS),
    default="joint",
    show_default=True,
    help="trace: Dynamo; joint: forward and backward graphs.",
)
@click.option(
    "--fast-forward",
    type=click.Choice(FAST_FORWARD),
    default="auto",
    show_default=True,
    help="Skip the arithmetic of compiled regions; auto: for all but small models.",
)
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    help="Let Inductor generate code for a device that need not be there: depth codegen.  [default: the GPU that is here]",
)
@click.option(
    "--routing",
    type=click.Choice(ROUTING),
    default="balanced",
    show_default=True,
    help="What an untrained router is assumed to do.",
)
@settings_option("A torch setting for every pass: torch._inductor.config.NAME=VALUE.")
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True),
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    help="Seconds for each pass.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Prove remedies by running the check again with them.",
)
@click.option(
    "--verify-budget",
    type=Seconds(min=0),
    default=DEFAULT_VERIFY_BUDGET_S,
    show_default=True,
    help="Seconds for all proofs together.",
)
@click.option(
    "--trust-remote-code",
    is_flag=True,
    help="Run Python code that comes with a model of the hub or of a directory.",
)
@fail_on_option
@gate_options.options
@output_format
@check_script.options
@json_file
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict line alone.")
@debug_option
def check(
    fail_on: str,
    json_path: str | None,
    quiet: bool,
    plan_path: str | None,
    plots: str | None,
    repro: str | None,
    config_path: str | None,
    command: tuple[str, ...],
    steps: int,
    ranks: tuple[int, ...],
    weights: bool,
    keep: str | None,
    baseline: str | None,
    write_baseline: str | None,
    output_format: str,
    fit: bool,
    **options: Any,
) -> int:
    """Check, before training, whether torch.compile will hold.

    Builds the model without weights, runs its training step on the CPU, and reports for each block whether it
    captures as a whole graph, what recompiles it and what to change. Needs no GPU.

    A file.py:build function returns (model, batches) or a cftdiag.Subject; its model decides attention,
    dtype, lengths and layers by itself.

    A training command after -- is rehearsed instead, unmodified: its ranks, data order, wrapper and loss run
    here without weights and GPUs, and what it writes goes to a scratch folder.
    """
    if json_path == "-" and output_format != "text":
        raise click.UsageError("--json - and --output-format both go to stdout; give --json a file")
    check_writable(json_path, plan_path)
    known = gate_options.read(baseline, write_baseline)
    if command:
        check_script.refuse_others()
        counts = fit or options["compile_scope"] == ALL_SCOPES
        script = check_script.asked(
            command, options, count=counts, steps=steps, ranks=ranks, weights=weights, keep=keep
        )
    else:
        check_script.refuse_own()
    _refuse(options)
    if not command:
        options["target"] = _target(options, quiet)
    early.refuse_config(config_path)
    if repro is not None:
        repro_files.refuse(options["model"], other=bool(command or config_path))
    every_scope = options["compile_scope"] == ALL_SCOPES
    if every_scope or fit:
        _refuse_without_gpu("--fit" if fit else ALL, options["target"])
    if every_scope:
        options["compile_scope"] = "block"
    asked = CheckOptions(**options | {"torch_config": dict(options["torch_config"])})
    if asked.subject.method != "full":
        asked = asked.with_(transform=APPLY_METHOD)
    if asked.subject.objective not in ("sft", "pretrain"):
        asked = asked.with_(objective_from=OBJECTIVE)
    if not command and asked.data.path is None and (plan_path or plots):
        raise click.UsageError("--plan and --plots come from a forecast; give --data FILE")
    from cftdiag.check import run_check
    from cftdiag.fix import patch
    from cftdiag.payoff.job import payoff, shapes_of
    from cftdiag.report import ci, status_line, terminal

    # a job that is cancelled ends like one that is interrupted: children stopped, scratch files removed
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with status_line.progress(sys.stderr, quiet=quiet) as on_progress:

        def with_payoff(asked: CheckOptions, report: CheckReport) -> CheckReport:
            if not every_scope and not fit:
                return report
            scopes = SCOPES if every_scope else tuple(dict.fromkeys(("none", asked.compile.scope)))
            try:
                found = payoff(
                    asked,
                    target=options["target"],
                    scopes=scopes,
                    shapes=shapes_of(asked, report.forecast),
                    one_row=config_path is not None,
                    progress=on_progress,
                )
            except CheckError as error:  # the check itself stands
                note = f"what each compile scope gains is not known: {error}"
                return dataclasses.replace(report, undetermined=(*report.undetermined, note))
            return dataclasses.replace(report, payoff=found)

        if command:
            report = check_script.run(script, on_progress)
        elif config_path is None:
            report = with_payoff(asked, run_check(asked, on_progress))
        else:
            report = _check_config(config_path, options, on_progress, with_payoff)
    data = report.to_dict() | {"asked": _asked()}
    data["diffs"] = patch.diffs(data)
    gate = gate_options.judge(data, known, write_baseline)
    data = gate.annotate(data)
    # The terminal first: a disk that has filled up meanwhile must not cost the answer.
    if json_path != "-" and output_format != "text":
        write_text("-", ci.FORMATS[output_format](data))
    elif json_path != "-":
        terminal.show(data, quiet=quiet)
    if json_path is not None:
        write_json(json_path, data)
    if plan_path is not None and report.plan is not None:
        report.plan.write(plan_path)
    if repro is not None:
        repro_files.write(repro, data, options["model"])
    if plots is not None and report.forecast is not None and report.forecast.get("points"):
        from cftdiag.report.plots import save_plots

        for path in save_plots(report.forecast, plots):
            click.echo(f"wrote {path}", err=True)
    return gate.exit_code(report.verdict, fail_on)


def _target(options: dict[str, Any], quiet: bool) -> str | None:
    """The target that is asked for; without one, and without a depth or a backend, that of the GPU that is here."""
    asked = (
        click.get_current_context().get_parameter_source("depth") == click.core.ParameterSource.COMMANDLINE
    )
    if options["target"] is not None or asked or options["compile_backend"] is not None:
        return cast("str | None", options["target"])
    here = present()
    if here is not None and not quiet:
        click.echo(f"checking for this machine's GPU, {here}; --depth joint leaves Inductor out", err=True)
    return here


def _refuse(options: dict[str, Any]) -> None:
    """Refuse what would have no effect or could not end well, before torch is imported."""
    if options["depth"] == "trace" and options["target"] is not None:
        raise click.UsageError("--depth trace stops before --target's code is generated; drop one of the two")
    if options["flash_varlen"] and (options["attn"] or "sdpa") in ("sdpa", "eager", "flex_attention"):
        raise click.UsageError(
            f"--flash-varlen passes sequence boundaries that attention {options['attn'] or 'sdpa'} does not read; "
            "give --attn flash_attention_2 or drop it"
        )
    early.refuse_sizes(options["batch_size"], options["lengths"])
    early.refuse_settings(dict(options["torch_config"]))
    early.refuse_source(options["model"])


def _refuse_without_gpu(flag: str, target: str | None) -> None:
    if target is None or target == "cpu":
        raise click.UsageError(
            f"{flag} estimates for a GPU; name it with --target ({', '.join(t for t in TARGETS if t != 'cpu')})"
        )


def _asked() -> dict[str, Any]:
    """How to make this check again."""
    state = click.get_current_context().ensure_object(State)
    return {"arguments": list(state.arguments), "directory": os.getcwd()}


#: Options that mean the same with --config; all others are in the file.
_WITH_CONFIG = ("timeout", "verify", "verify_budget", "depth", "target", "torch_config", "world_size")


def _check_config(
    path: str,
    options: dict[str, Any],
    on_progress: Progress,
    after: Callable[[CheckOptions, CheckReport], CheckReport],
) -> CheckReport:
    """Check the trainer's configuration: the same model, method, wrapping and packed rows, on
    ``--world-size`` ranks. ``after`` adds to the report.
    """
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    given = [
        name
        for name in options
        if context.get_parameter_source(name) == source
        and name not in _WITH_CONFIG
        and (name != "compile_scope" or context.params[name] != ALL_SCOPES)
    ]
    if given:
        raise click.UsageError(
            f"--{given[0].replace('_', '-')} is decided by {path}; change it there or drop --config"
        )
    module, _, function = CHECK_CONFIG.partition(":")
    check_config = getattr(importlib.import_module(module), function)
    more = {name: options[name] for name in _WITH_CONFIG if name != "world_size"} | {
        "torch_config": dict(options["torch_config"])
    }
    try:
        return check_config(path, world=options["world_size"], progress=on_progress, after=after, **more)
    except CheckError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error
