"""The program that training runs: model, wrapping, compiled regions. The check builds the very same, without
weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from cftdiag.recipe.apply import apply_recipe
from cftdiag.recipe.attention import needs_boundaries
from cftdiag.recipe.blocks import Blocks, find_blocks
from cftdiag.recipe.compile import Compiler
from cftdiag.recipe.fsdp import make_mesh
from cftdiag.recipe.loss import verify_head
from cftdiag.recipe.train_recipe import TrainRecipe
from trainer.config import TrainConfig
from trainer.distributed import on_rank_zero
from trainer.export import export_checkpoint
from trainer.idle import idle_modules
from trainer.methods import method_of
from trainer.methods.method import Known
from trainer.model import Source, build_meta, dtype_of, load_weights, open_source
from trainer.objectives import Objective, objective_of
from trainer.osft.surgery import Target
from trainer.weights import Filler, materialize, values_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """What :func:`build` made."""

    model: nn.Module
    """Wrapped; called with the tensors of a batch of the objective it returns the row's summed loss."""
    objective: Objective
    blocks: Mapping[str, nn.Module]
    """The blocks as wrapped, by plain name."""
    regions: Blocks
    """What is compiled, by name: blocks, the loss, the model's body, or model and loss as one."""
    recipe: TrainRecipe
    compiler: Compiler
    targets: tuple[Target, ...]
    """Of OSFT; empty for other methods."""
    mesh: DeviceMesh
    source: Source
    varlen: bool
    """Batches carry document boundaries."""
    device: torch.device
    dtype: torch.dtype
    """Of forward and backward."""

    @property
    def calls(self) -> dict[str, nn.Module]:
        """What is called by itself, by name: compiled regions, and blocks that are not inside of one."""
        regions = dict(self.regions)
        return regions if self.recipe.whole_model else {**self.blocks, **regions}


def build(
    config: TrainConfig,
    *,
    device: torch.device | None = None,
    weights: bool = True,
    source: Source | None = None,
    ranks: Mapping[str, int] | None = None,
    wrap_backend: Callable[[str], Callable[..., Any]] | None = None,
    calibration: Callable[[], list[dict[str, Any]]] | None = None,
) -> Program:
    """Build the model of ``config`` as training would, on the default process group (which must exist; a fake
    one does).

    ``weights=False`` allocates everything and loads and decomposes nothing. ``source`` replaces the model
    that ``config`` names. ``ranks`` gives the frozen directions of each OSFT target where they are known
    (from a checkpoint). ``wrap_backend`` maps a backend's name to the callable that compiles. ``calibration``
    gives the batches that adaptive ranks are measured on; without weights or calibration the uniform ratio
    stands in for them. Raises ``ValueError`` for a user's mistake.
    """
    device = device or torch.device("cpu")
    source = source or open_source(config)
    objective = objective_of(config)
    objective.require(world=dist.get_world_size(), attn=source.attn, tokenizer=source.tokenizer)
    objective.open()
    stored = dtype_of(config.train_dtype)
    dtype = compute_dtype(config, device)
    model = build_meta(source, dtype=stored)

    plain = on_rank_zero(lambda: _plain(source, config)) if weights else None
    known = Known(ranks=ranks, plain=plain, calibration=calibration if weights else None)
    targets = apply_method(model, config, known)

    recipe = recipe_of(config, dtype, objective)
    compiler = Compiler(recipe, (wrap_backend or lookup_backend)(config.backend), dynamic=config.dynamic)
    mesh = make_mesh(device.type, dist.get_world_size(), recipe.replicas, recipe.tensor_parallel)
    wrapped = apply_recipe(model, find_blocks(model), recipe, compile=compiler, mesh=mesh)
    materialize(model, device)
    if weights:
        values = values_of(plain) if plain is not None else {}
        method_of(config).fill(Filler(model=model, device=device), values, targets)
    return Program(
        model=model, objective=objective, blocks=dict(wrapped.blocks), regions=wrapped.regions, recipe=recipe, compiler=compiler, targets=targets,
        mesh=mesh, source=source, varlen=needs_boundaries(source.attn), device=device, dtype=dtype,
    )  # fmt: skip


def recipe_of(config: TrainConfig, dtype: torch.dtype, objective: Objective) -> TrainRecipe:
    """How the model of ``config`` is wrapped; ``dtype`` is that of forward and backward."""
    return TrainRecipe(
        scope=config.scope,
        ac=config.ac,
        loss_chunks=config.loss_chunks,
        loss=objective.loss,
        dtype=str(dtype).removeprefix("torch."),
        replicas=config.replicas,
        tensor_parallel=config.tensor_parallel,
        always_sharded=True,
    )


def compute_dtype(config: TrainConfig, device: torch.device) -> torch.dtype:
    """Of forward and backward. Raises ``ValueError`` for float16, whose small gradients vanish unscaled."""
    if "float16" in (config.dtype, config.train_dtype):
        raise ValueError(
            "float16 needs a loss that is scaled, which this trainer does not do; give bfloat16 or float32"
        )
    if config.dtype:
        return dtype_of(config.dtype)
    return torch.bfloat16 if device.type == "cuda" else dtype_of(config.train_dtype)


def _plain(source: Source, config: TrainConfig) -> nn.Module:
    """The plain model with its weights; with ``osft_redecompose`` those of a checkpoint, its factors
    multiplied out.
    """
    with contextlib.ExitStack() as stack:
        if config.osft_redecompose is not None:
            Path(config.output_dir).mkdir(parents=True, exist_ok=True)
            dense = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=config.output_dir)))
            export_checkpoint(Path(config.osft_redecompose), dense, dtype=config.train_dtype)
            source = dataclasses.replace(source, path=str(dense))
        model = load_weights(source, dtype=dtype_of(config.train_dtype), seed=config.seed)
    verify_head(model)
    return model


def apply_method(model: nn.Module, config: TrainConfig, known: Known | None = None) -> tuple[Target, ...]:
    """Turn a plain model, on meta as a rule, into that of the run's method, in place and without values;
    returns OSFT's targets. What a step never calls is frozen by every method.
    """
    for name in idle_modules(model):
        model.get_submodule(name).requires_grad_(False)
    return method_of(config).change(model, known or Known())


def lookup_backend(name: str) -> Callable[..., Any]:
    """The compile backend of a name. Raises ``ValueError`` for an unknown one, with the known ones."""
    from cftdiag.torch_private.dynamo import InvalidBackend, list_backends, lookup_backend

    try:
        return lookup_backend(name)
    except InvalidBackend as error:
        known = ", ".join(list_backends(exclude_tags=()))
        raise ValueError(
            f"unknown compile backend {name!r} (from --compile-backend or TORCH_COMPILE_BACKEND); one of {known}"
        ) from error
