"""The check of a configuration before step 0: the same model, method, loss and packed rows, without weights."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cftdiag.check import CheckOptions, CheckReport, Subject, run_check
from trainer.attention import needs_boundaries
from trainer.batch import collate
from trainer.checkpointing import apply_ac
from trainer.compile import DYNAMIC, REGIONS, Compiler, static_settings
from trainer.config import TrainConfig
from trainer.data import Data, open_data
from trainer.forward import install_loss_forward
from trainer.loss import cross_entropy_sum
from trainer.loss_check import compare_loss
from trainer.model import Source, build_meta, dtype_of, find_blocks, open_source
from trainer.program import apply_method, lookup_backend

#: Distinct row lengths that the check runs, the first met in training first; the others are forecast from
#: guards.
LENGTHS = 6
_CONFIG = "TRAINER_PREFLIGHT_CONFIG"
_WORLD = "TRAINER_PREFLIGHT_WORLD"


class _CrossEntropy(nn.Module):
    """The loss as a module: what the check can compile by itself and report on."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy_sum(logits, labels)


class _Whole(nn.Module):
    """The model inside of another, so that the check compiles all of it, loss included, as one block."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.step = model
        self.config = model.config

    def forward(self, **batch: Any) -> Tensor:
        return self.step(**batch)


def subject_of(config: TrainConfig, source: Source, data: Data) -> Subject:
    """What `cftdiag check` needs to check this configuration; the model is on meta.

    Its blocks are the regions that the scope compiles. Wrapping is left to the check's own options (``ac``,
    ``world_size``), which apply it in the trainer's order, but for checkpointing inside of a region over the
    whole model.
    """
    model = build_meta(source, dtype=_dtype(config))
    apply_method(model, config)
    blocks = find_blocks(model)
    regions = REGIONS[config.scope] or ("block",)
    if _over_all(regions):
        apply_ac(model, blocks, config.ac)
    names: list[str] = []
    if "block" in regions:
        names += blocks
    if "model" in regions:
        names.append(model.base_model_prefix)
    if "loss" in regions:
        names.append("cross_entropy")
        model.cross_entropy = _CrossEntropy()
    eager = Compiler("none", lookup_backend("eager"))
    # Looked up at each call: the check puts wrappers in the module's place.
    loss = (
        (lambda logits, labels: model.cross_entropy(logits, labels))
        if "loss" in regions
        else cross_entropy_sum
    )
    install_loss_forward(model, eager, chunks=config.loss_chunks, cross_entropy=loss)
    if "model+loss" in regions:
        model, names = _Whole(model), ["step"]

    pad = getattr(source.tokenizer, "pad_token_id", None) or 0
    rows = {
        row.length: row
        for step in reversed(data.steps)
        for micro in step.rows
        for row in micro
        if row.samples
    }
    first_met = [n for step in data.lengths for micro in step for n in micro]
    lengths = list(dict.fromkeys(n for n in first_met if n in rows))[:LENGTHS]
    return Subject(
        model=model,
        batches=[
            collate(rows[n], data.train, pad_id=pad, varlen=needs_boundaries(source.attn)) for n in lengths
        ],
        blocks=names,
        step=_step,
        compile_kwargs={"fullgraph": True, "dynamic": DYNAMIC[config.dynamic]},
    )


def as_method(model: Any, method: str) -> None:
    """Turn a plain causal LM into that of a method (``osft`` or ``lora``) with the default options, in place
    and without values.
    """
    apply_method(model, TrainConfig(osft=method == "osft", lora=method == "lora", compile_model=True))


def build() -> Subject:
    """Builder of the check's child processes: the configuration is in the environment."""
    config = TrainConfig.from_mapping(json.loads(os.environ[_CONFIG]))
    source = open_source(config)
    world = int(os.environ[_WORLD])
    return subject_of(
        config, source, open_data(config, source.tokenizer, vocabulary=source.config.vocab_size, world=world)
    )


def check(config: TrainConfig, *, world: int, progress: Any = None, **options: Any) -> CheckReport:
    """Check ``config`` on ``world`` ranks; further ``options`` are fields of
    :class:`cftdiag.check.CheckOptions`.

    Compiled code is not run, so that a backend beyond ``aot_eager`` stands at the check's own depth, or that
    of the option ``target``.
    """
    asked = CheckOptions(
        model=f"{Path(__file__)}:build",
        # Emptied: the check would otherwise read the variable and refuse to run Inductor's code on weights
        # that are not there.
        env={_CONFIG: json.dumps(config.to_dict()), _WORLD: str(world), "TORCH_COMPILE_BACKEND": ""},
        ac="none" if _over_all(REGIONS[config.scope]) else config.ac,
        world_size=world,
        compile_backend="eager" if config.backend == "eager" and options.get("target") is None else None,
        torch_config=static_settings() | dict(options.pop("torch_config", {})),
        **options,
    )
    report = run_check(asked, progress)
    own = {
        "ac": config.ac,
        "compile_scope": "block" if config.scope == "none" else config.scope,
        "method": config.method,
    }
    return dataclasses.replace(report, subject={**report.subject, **own})


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


def _step(model: Any, batch: dict[str, Any]) -> Any:
    loss = model(**batch)
    loss.backward()
    return loss


def _line(finding: Mapping[str, Any]) -> str:
    where = finding["where"]
    place = f" at {where['file']}:{where['line']}" if where.get("file") else ""
    remedy = f"; {finding['remedies'][0]['summary']}" if finding["remedies"] else ""
    return f"{finding['kind']} {finding['cause']} in {', '.join(finding['blocks']) or 'the model'}{place}{remedy}"


def _over_all(regions: tuple[str, ...]) -> bool:
    return any(region.startswith("model") for region in regions)


def _dtype(config: TrainConfig) -> torch.dtype:
    """Of forward and backward, as :func:`trainer.program.build` decides it."""
    cuda = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    return dtype_of(config.dtype or ("bfloat16" if cuda else config.train_dtype))
