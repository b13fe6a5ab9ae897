"""A plan of ``cftdiag check --plan``: its settings applied, its regimes compiled before step 0."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from array import array
from pathlib import Path
from typing import Any

import torch

from trainer.batch import collate, to_device
from trainer.config import TrainConfig
from trainer.packing import Row, Sample
from trainer.program import Program
from trainer.records import IGNORE, Tokens

SCHEMA = "cftdiag.plan/1"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What the trainer takes from a plan."""

    fingerprint: dict[str, Any]
    options: dict[str, Any]
    """Settings that are options of this trainer."""
    torch: dict[str, Any]
    """Settings that are dotted torch config names."""
    unsafe: tuple[str, ...]
    """Keys of the settings that are marked unsafe."""
    lengths: tuple[int, ...]
    """Row lengths that represent the regimes, in order."""


def read_plan(path: str) -> Plan:
    """Raises ``ValueError`` when the file is no plan or sets what this trainer does not have."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}")
        settings = {s["key"]: s["value"] for s in data["settings"]}
        regimes = [r["representative"] for r in data["regimes"]]
        # A packed row is one row: regimes of more rows are not met here.
        lengths = tuple(dict.fromkeys(r["length"] for r in regimes if r.get("batch_size", 1) == 1))
        unsafe = tuple(s["key"] for s in data["settings"] if s.get("unsafe"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a {SCHEMA} file ({error}); write one with `cftdiag check --plan`") from error
    names = {f.name for f in dataclasses.fields(TrainConfig)}
    options = {k.replace("-", "_"): v for k, v in settings.items() if not k.startswith("torch.")}
    if unknown := sorted(options.keys() - names):
        raise ValueError(f"{path} sets {unknown[0]!r}, which this trainer does not have")
    return Plan(
        fingerprint=data.get("fingerprint", {}),
        options=options,
        torch={k: v for k, v in settings.items() if k.startswith("torch.")},
        unsafe=unsafe,
        lengths=lengths,
    )


def check_fingerprint(plan: Plan, config: TrainConfig, *, attn: str, dtype: torch.dtype, world: int) -> None:
    """Raise ``ValueError`` naming the first field in which the plan was made for something else; fields it does not have are not compared."""
    actual = {
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
        "attn": attn,
        "dtype": str(dtype).removeprefix("torch."),
        "method": config.method,
        "ac": config.ac,
        "scope": config.scope,
        "world_size": world,
    }
    for name, value in actual.items():
        planned = plan.fingerprint.get(name)
        if planned is not None and planned != value:
            raise ValueError(f"the compile plan was made for {name} {planned!r}, this run has {value!r}; write it again with `cftdiag check --plan`")


def warm(program: Program, plan: Plan) -> None:
    """Forward and backward once for each regime, on all ranks in one order. Random numbers and gradients are afterwards as before. Collective."""
    devices = [program.device] if program.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        for length in plan.lengths:
            batch = collate(Row(samples=(0, 1), length=length), _Two(length), pad_id=0, varlen=program.varlen)
            program.model(**to_device(batch, program.device)).backward()
    program.model.zero_grad(set_to_none=True)


class _Two:
    """Two documents that leave some padding in a row of ``length``, as packed rows have."""

    def __init__(self, length: int) -> None:
        half = max(1, (length - 1) // 2)
        self._tokens = Tokens(input_ids=array("q", [0] * half), labels=array("q", [IGNORE] + [0] * (half - 1)))
        self.samples: list[Sample] = [self._tokens.sample(1)] * 2

    def __getitem__(self, index: int) -> Tokens:
        return self._tokens
