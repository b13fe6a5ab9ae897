"""A plan of ``cftdiag check --plan``: held against this run, its settings applied, its regimes compiled
before step 0.
"""

from __future__ import annotations

import dataclasses
from array import array
from importlib import metadata
from typing import Any

import torch

from cftdiag.options import DYNAMIC
from cftdiag.plan import Plan, config_sha, load_plan
from cftdiag.recipe.packing import Row, Sample
from trainer.batch import to_device
from trainer.config import TrainConfig
from trainer.objectives.objective import split
from trainer.program import Program
from trainer.records import IGNORE, Tokens


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CompilePlan:
    """What the trainer takes from a plan."""

    path: str
    plan: Plan
    options: dict[str, Any]
    """Settings that are options of this trainer."""
    torch: dict[str, Any]
    """Settings that are dotted torch config names."""
    rows: tuple[tuple[int, str], ...]
    """(length, variant) of the rows that represent the regimes, in order. A packed row is one row: regimes of
    more rows are not met here.
    """

    @property
    def unsafe(self) -> tuple[str, ...]:
        """Keys of the settings that are marked unsafe."""
        return tuple(s.key for s in self.plan.unsafe)


def read_plan(path: str) -> CompilePlan:
    """Raises ``ValueError`` when the file is no plan or sets what this trainer does not have."""
    plan = load_plan(path)
    settings = {s.key: s.value for s in plan.settings}
    options = {
        key.replace("-", "_"): value for key, value in settings.items() if not key.startswith("torch.")
    }
    if unknown := sorted(options.keys() - {f.name for f in dataclasses.fields(TrainConfig)}):
        raise ValueError(f"{path} sets {unknown[0]!r}, which this trainer does not have")
    return CompilePlan(
        path=path,
        plan=plan,
        options=options,
        torch={key: value for key, value in settings.items() if key.startswith("torch.")},
        rows=tuple(
            (length, variant) for rows, length, variant in plan.warm if rows == 1 and variant != "padded"
        ),
    )


def check_fingerprint(
    plan: CompilePlan,
    config: TrainConfig,
    *,
    model_config: Any,
    attn: str,
    dtype: torch.dtype,
    device: str,
    world: int,
) -> None:
    """Raise ``ValueError`` naming the first field in which the plan was made for something else.

    ``device`` is ``cpu`` or the GPU's name. The depth is not compared: a run goes deeper than any check.
    """
    expect = {
        "torch": metadata.version("torch"),
        "transformers": metadata.version("transformers"),
        "config_sha": config_sha(model_config),
        "attn": attn,
        "dtype": str(dtype).removeprefix("torch."),
        "method": config.method_name,
        "objective": "sft" if config.objective == "pretrain" else config.objective,
        "ac": config.ac,
        "scope": config.scope,
        "world_size": world,
        "compile_kwargs": {"dynamic": DYNAMIC[config.dynamic], "fullgraph": True},
    }
    target = plan.plan.fingerprint["target"]
    # A plan made for no device in particular, which is without Inductor's guards, holds on any.
    if target is not None:
        expect["target"] = target if target in device.lower() else device
    plan.plan.check(expect, f"plan {plan.path}")


def warm(program: Program, plan: CompilePlan, *, validates: bool = False) -> None:
    """Forward and backward once for each regime, on all ranks in one order; with ``validates`` a forward without gradients
    behind each, which is a graph of its own. Random numbers and gradients are afterwards as before. Collective.
    """
    devices = [program.device] if program.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        for length, variant in plan.rows:
            documents = _Documents(length, packed=variant == "packed")
            row = Row(samples=tuple(range(len(documents.samples))), length=length)
            batch = program.objective.collate(row, documents, pad_id=0, varlen=program.varlen)
            split(program.model(**to_device(batch, program.device)))[0].backward()
            if validates:
                program.model.eval()
                with torch.no_grad():
                    program.model(**to_device(batch, program.device))
                program.model.train()
    program.model.zero_grad(set_to_none=True)


class _Documents:
    """Two documents that leave some padding in a row of ``length``, as packed rows have, or one that fills
    it.
    """

    def __init__(self, length: int, *, packed: bool) -> None:
        each = max(1, (length - 1) // 2) if packed else length
        self._tokens = Tokens(
            input_ids=array("q", [0] * each), labels=array("q", [IGNORE] + [0] * (each - 1))
        )
        self.samples: list[Sample] = [self._tokens.sample(1)] * (2 if packed else 1)

    def __getitem__(self, index: int) -> Tokens:
        return self._tokens
