"""The check of a configuration before step 0: the same model, method, loss and packed rows, without weights."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from cftdiag.check import CheckOptions, CheckReport, Subject, run_check
from cftdiag.errors import InputError
from cftdiag.options import DYNAMIC, SCOPE_VARIABLE
from cftdiag.recipe.attention import needs_boundaries
from cftdiag.recipe.compile import static_settings
from trainer.config import TrainConfig
from trainer.data import Data, open_data
from trainer.loss_check import compare_loss
from trainer.model import Source, build_meta, dtype_of, open_source
from trainer.objectives import Objective, objective_of
from trainer.program import apply_method, compute_dtype, lookup_backend, recipe_of

#: Distinct row lengths that the check runs, the first met in training first; the others are forecast from
#: guards.
LENGTHS = 6
_CONFIG = "TRAINER_PREFLIGHT_CONFIG"
_WORLD = "TRAINER_PREFLIGHT_WORLD"
_CUDA = "TRAINER_PREFLIGHT_CUDA"


def subject_of(config: TrainConfig, source: Source, data: Data, *, cuda: bool = False) -> Subject:
    """What `cftdiag check` needs to check this configuration: the plain model of its method, on meta, and the
    recipe by which :func:`trainer.program.build` wraps it. ``cuda`` says that it is to train on a GPU that need
    not be here.
    """
    objective = objective_of(config)
    model = build_meta(source, dtype=dtype_of(config.train_dtype))
    apply_method(model, config)
    pad = getattr(source.tokenizer, "pad_token_id", None) or 0
    samples, steps = objective.rows_ahead(data)
    rows = {
        row.length: row for step in reversed(steps) for micro in step.rows for row in micro if row.samples
    }
    first_met = [row.length for step in steps for micro in step.rows for row in micro]
    lengths = list(dict.fromkeys(n for n in first_met if n in rows))[:LENGTHS]
    return Subject(
        model=model,
        batches=[
            objective.collate(rows[n], samples, pad_id=pad, varlen=needs_boundaries(source.attn))
            for n in lengths
        ],
        training=recipe_of(config, _dtype(config, cuda=cuda), objective),
        compile_kwargs={"fullgraph": True, "dynamic": DYNAMIC[config.dynamic]},
    )


def as_method(model: Any, method: str, scope: str) -> None:
    """Turn a plain causal LM into that of a method (one of ``cftdiag.options.METHODS``) under a compile scope, with
    the default options, in place and without values.
    """
    apply_method(model, TrainConfig(method=method, compile_scope=scope))


def as_objective(name: str) -> Objective:
    """An objective (one of ``cftdiag.options.OBJECTIVES``) with the default options."""
    return objective_of(TrainConfig(objective=name))


def build() -> Subject:
    """Builder of the check's child processes: the configuration is in the environment."""
    config = TrainConfig.from_mapping(json.loads(os.environ[_CONFIG]))
    world = int(os.environ[_WORLD])
    if SCOPE_VARIABLE in os.environ:
        config = dataclasses.replace(config, compile_scope=os.environ[SCOPE_VARIABLE])
    try:
        source = open_source(config)
        vocabulary = source.config.get_text_config().vocab_size
        objective_of(config).require(world=world, attn=source.attn, tokenizer=source.tokenizer)
        data = open_data(
            config, source.tokenizer, vocabulary=vocabulary, world=world // config.tensor_parallel
        )
        return subject_of(config, source, data, cuda=os.environ[_CUDA] == "1")
    except ValueError as error:
        raise InputError(str(error)) from error


def check_file(path: str, *, world: int, progress: Any = None, **options: Any) -> CheckReport:
    """:func:`check` of a YAML configuration; raises ``ValueError`` for what is wrong with it."""
    return check(TrainConfig.from_yaml(path), world=world, progress=progress, title=path, **options)


def _as_it_is(asked: CheckOptions, report: CheckReport) -> CheckReport:
    return report


def check(
    config: TrainConfig,
    *,
    world: int,
    progress: Any = None,
    title: str | None = None,
    after: Callable[[CheckOptions, CheckReport], CheckReport] = _as_it_is,
    **options: Any,
) -> CheckReport:
    """Check ``config`` on ``world`` ranks; ``title`` is put before the model's name in the report. ``after`` may add to the
    report by further passes over the same subject. Further ``options`` are keywords of :class:`cftdiag.check.CheckOptions`.

    Compiled code is not run, so that a backend beyond ``aot_eager`` stands at the check's own depth, or that
    of the option ``target``.
    """
    # The demo writes its model and data where a run would: a check leaves nothing in the run's directory.
    with tempfile.TemporaryDirectory() as scratch:
        checked = dataclasses.replace(config, output_dir=scratch)
        asked = CheckOptions(
            model=f"{Path(__file__)}:build",
            # Emptied: the check would otherwise read the variable and refuse to run Inductor's code on weights
            # that are not there.
            env={
                _CONFIG: json.dumps(checked.to_dict()),
                _WORLD: str(world),
                _CUDA: "1" if options.get("target") not in (None, "cpu") else "0",
                "TORCH_COMPILE_BACKEND": "",
            },
            ac=config.ac,
            # A run that compiles nothing is asked what would become of its blocks.
            compile_scope="block" if config.scope == "none" else config.scope,
            method=config.method_name,
            objective=config.objective,
            world_size=world,
            tensor_parallel=config.tensor_parallel,
            compile_backend="eager" if config.backend == "eager" and options.get("target") is None else None,
            torch_config=static_settings() | dict(options.pop("torch_config", {})),
            **options,
        )
        report = after(asked, run_check(asked, progress))
    model = "demo" if config.demo else config.model_name_or_path
    return dataclasses.replace(
        report, subject={**report.subject, "name": f"{title}: {model}" if title else model}
    )


def preflight(
    config: TrainConfig, *, world: int, device: torch.device, settings: Mapping[str, Any]
) -> list[str]:
    """Run the check, compare a compiled loss with eager, and return the lines for the console.

    ``settings`` are the torch settings of the run by dotted name. Raises ``ValueError`` with the first
    finding when a region would break or the loss is another.
    """
    if config.scope == "none":
        return ["preflight: nothing is compiled, so there is nothing to check"]
    if "loss" in config.scope:
        wrong = compare_loss(
            config,
            open_source(config).config,
            lookup_backend(config.backend),
            device=device,
            dtype=_dtype(config),
        )
        if wrong:
            raise ValueError(
                f"preflight: {wrong[0]} (backend {config.backend}); leave the loss out of --compile-scope"
            )
    report = check(config, world=world, verify=False, torch_config=settings).to_dict()
    found = report["findings"]
    bad = [f for f in found if f["severity"] == "error"]
    if report["verdict"] in ("not_viable", "error"):
        if not bad:
            raise ValueError(
                "preflight came to no conclusion; run `cftdiag check` to see why, or train without --preflight"
            )
        raise ValueError(f"preflight: {len(bad)} blocking findings, the first: {_line(bad[0])}")
    return [
        f"preflight: {report['verdict']}",
        *(f"preflight: {_line(f)}" for f in found if f["severity"] == "warning"),
    ]


def _line(finding: Mapping[str, Any]) -> str:
    where = finding["where"]
    place = f" at {where['file']}:{where['line']}" if where.get("file") else ""
    remedy = f"; {finding['remedies'][0]['summary']}" if finding["remedies"] else ""
    return f"{finding['kind']} {finding['cause']} in {', '.join(finding['blocks']) or 'the model'}{place}{remedy}"


def _dtype(config: TrainConfig, *, cuda: bool = False) -> torch.dtype:
    here = config.device == "cuda" or (config.device == "auto" and (cuda or torch.cuda.is_available()))
    return compute_dtype(config, torch.device("cuda" if here else "cpu"))
