"""The check of a configuration before step 0: the same model, method, loss and packed rows, without weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cftdiag.check import CheckOptions, CheckReport, Subject, run_check
from trainer.attention import needs_boundaries
from trainer.batch import collate
from trainer.compile import Compiler, static_settings
from trainer.config import TrainConfig
from trainer.data import Data, open_data
from trainer.forward import install_loss_forward
from trainer.model import Source, build_meta, dtype_of, open_source
from trainer.program import apply_method, lookup_backend

#: Distinct row lengths that the check runs, the first met in training first; the others are forecast from guards.
LENGTHS = 6
_CONFIG = "TRAINER_PREFLIGHT_CONFIG"
_WORLD = "TRAINER_PREFLIGHT_WORLD"


def subject_of(config: TrainConfig, source: Source, data: Data) -> Subject:
    """What `cftdiag check` needs to check this configuration; the model is on meta.

    Wrapping is left to the check's own options (``ac``, ``world_size``), which apply it in the trainer's order.
    """
    device = config.device if config.device != "auto" else "cuda" if _cuda() else "cpu"
    dtype = config.dtype or ("bfloat16" if device == "cuda" else config.train_dtype)
    model = build_meta(source, dtype=dtype_of(dtype))
    apply_method(model, config)
    install_loss_forward(model, Compiler("none", lookup_backend("eager")), chunks=config.loss_chunks)
    pad = getattr(source.tokenizer, "pad_token_id", None) or 0
    rows = {row.length: row for step in reversed(data.steps) for micro in step.rows for row in micro if row.samples}
    first_met = [n for step in data.lengths for micro in step for n in micro]
    lengths = list(dict.fromkeys(n for n in first_met if n in rows))[:LENGTHS]
    return Subject(
        model=model,
        batches=[collate(rows[n], data.train, pad_id=pad, varlen=needs_boundaries(source.attn)) for n in lengths],
        step=_step,
        compile_kwargs={"fullgraph": True, "dynamic": {"auto": None, "true": True, "false": False}[config.dynamic]},
    )


def as_method(model: Any, method: str) -> None:
    """Turn a plain causal LM into that of a method (``osft`` or ``lora``) with the default options, in place and without values."""
    apply_method(model, TrainConfig(osft=method == "osft", lora=method == "lora", compile_model=True))


def build() -> Subject:
    """Builder of the check's child processes: the configuration is in the environment."""
    config = TrainConfig.from_mapping(json.loads(os.environ[_CONFIG]))
    source = open_source(config)
    world = int(os.environ[_WORLD])
    return subject_of(config, source, open_data(config, source.tokenizer, vocabulary=source.config.vocab_size, world=world))


def check(config: TrainConfig, *, world: int, progress: Any = None, **options: Any) -> CheckReport:
    """Check ``config`` on ``world`` ranks; further ``options`` are fields of :class:`cftdiag.check.CheckOptions`."""
    asked = CheckOptions(
        model=f"{Path(__file__)}:build",
        env={_CONFIG: json.dumps(config.to_dict()), _WORLD: str(world)},
        ac=config.ac,
        world_size=world,
        torch_config=static_settings() | dict(options.pop("torch_config", {})),
        **options,
    )
    return run_check(asked, progress)


def preflight(config: TrainConfig, *, world: int) -> list[str]:
    """Run the check and return its lines for the console. Raises ``ValueError`` with the first finding when a block would break."""
    report = check(config, world=world, verify=False)
    found = report.to_dict()["findings"]
    bad = [f for f in found if f["severity"] == "error"]
    if report.to_dict()["verdict"] in ("not_viable", "error"):
        if not bad:
            raise ValueError("preflight came to no conclusion; run `cftdiag check` to see why, or train without --preflight")
        raise ValueError(f"preflight: {len(bad)} blocking findings, the first: {_line(bad[0])}")
    return [f"preflight: {report.to_dict()['verdict']}", *(f"preflight: {_line(f)}" for f in found if f["severity"] == "warning")]


def _step(model: Any, batch: dict[str, Any]) -> Any:
    loss = model(**batch)
    loss.backward()
    return loss


def _line(finding: dict[str, Any]) -> str:
    where = finding["where"]
    place = f" at {where['file']}:{where['line']}" if where.get("file") else ""
    remedy = f"; {finding['remedies'][0]['summary']}" if finding["remedies"] else ""
    return f"{finding['kind']} {finding['cause']} in {', '.join(finding['blocks']) or 'the model'}{place}{remedy}"


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()
