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
from trainer import lora
from trainer.config import TrainConfig
from trainer.distributed import on_rank_zero
from trainer.export import export_checkpoint
from trainer.idle import idle_modules, trained_blocks
from trainer.model import Source, build_meta, dtype_of, load_weights, open_source
from trainer.osft import surgery
from trainer.osft.importance import layer_importance
from trainer.osft.ranks import adaptive, by_target
from trainer.weights import fill_from, materialize


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """What :func:`build` made."""

    model: nn.Module
    """Wrapped; called with the tensors of :func:`trainer.batch.collate` it returns the row's summed loss."""
    blocks: Mapping[str, nn.Module]
    """The blocks as wrapped, by plain name."""
    regions: Blocks
    """What is compiled, by name: blocks, the loss, the model's body, or model and loss as one."""
    recipe: TrainRecipe
    compiler: Compiler
    targets: tuple[surgery.Target, ...]
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
    stored = dtype_of(config.train_dtype)
    dtype = compute_dtype(config, device)
    model = build_meta(source, dtype=stored)

    plain = on_rank_zero(lambda: _plain(source, config)) if weights else None
    targets = apply_method(
        model, config, ranks=ranks, plain=plain, calibration=calibration if weights else None
    )

    recipe = recipe_of(config, dtype)
    compiler = Compiler(recipe, (wrap_backend or lookup_backend)(config.backend), dynamic=config.dynamic)
    mesh = make_mesh(device.type, dist.get_world_size(), recipe.replicas)
    wrapped = apply_recipe(model, find_blocks(model), recipe, compile=compiler, mesh=mesh)
    materialize(model, device)
    if weights:
        fill_from(
            model,
            plain,
            list(targets),
            device=device,
            upcast=dtype_of(config.osft_upcast_dtype),
            seed=config.seed,
        )
    return Program(
        model=model, blocks=dict(wrapped.blocks), regions=wrapped.regions, recipe=recipe, compiler=compiler, targets=targets,
        mesh=mesh, source=source, varlen=needs_boundaries(source.attn), device=device, dtype=dtype,
    )  # fmt: skip


def recipe_of(config: TrainConfig, dtype: torch.dtype) -> TrainRecipe:
    """How the model of ``config`` is wrapped; ``dtype`` is that of forward and backward."""
    return TrainRecipe(
        scope=config.scope,
        ac=config.ac,
        loss_chunks=config.loss_chunks,
        dtype=str(dtype).removeprefix("torch."),
        replicas=config.replicas,
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


def apply_method(
    model: nn.Module,
    config: TrainConfig,
    *,
    ranks: Mapping[str, int] | None = None,
    plain: nn.Module | None = None,
    calibration: Callable[[], list[dict[str, Any]]] | None = None,
) -> tuple[surgery.Target, ...]:
    """Turn a plain model, on meta as a rule, into that of the method (OSFT or LoRA), in place and without
    values; returns OSFT's targets.

    Only adaptive ranks with ``calibration`` need a process group, and ``plain`` (with weights) on its rank 0.
    """
    for name in idle_modules(model):
        model.get_submodule(name).requires_grad_(False)
    if config.lora:
        lora.adapt(
            model, rank=config.lora_rank, alpha=config.lora_alpha, patterns=config.lora_target_patterns
        )
        _first_like_the_others(model, config)
    if not config.osft:
        return ()
    unfreeze: float | Mapping[str, float] = config.unfreeze_ratio
    patterns = config.osft_target_patterns
    if config.osft_ranks == "adaptive" and calibration is not None:
        ratios = layer_importance(plain, calibration) if plain is not None else None
        shared = [ratios]
        dist.broadcast_object_list(shared, src=0)
        assert shared[0] is not None
        names = [t.name for t in surgery.plan(model, 0.5, patterns)]
        unfreeze = by_target(
            names, list(shared[0]), adaptive(list(shared[0].values()), config.unfreeze_ratio)
        )
    targets = surgery.plan(model, unfreeze, patterns, config.osft_rank_pattern)
    if ranks is not None:
        if ranks.keys() != {t.name for t in targets}:
            raise ValueError(
                "the checkpoint has other OSFT targets than this model; give the model and the options that it was trained with"
            )
        for target in targets:
            if ranks[target.name] > (most := min(target.rows, target.columns)):
                raise ValueError(
                    f"the checkpoint is of another model: it has {ranks[target.name]} frozen directions of {target.name}, "
                    f"which has {most} here; give the model that it was trained with"
                )
        targets = [dataclasses.replace(t, high=ranks[t.name]) for t in targets]
    surgery.split(model, targets)
    surgery.freeze_beside(model, targets, [name for name, _ in trained_blocks(model)], config.osft_beside)
    if config.osft_beside != "all":
        _first_like_the_others(model, config)
    return tuple(targets)


def _first_like_the_others(model: nn.Module, config: TrainConfig) -> None:
    """Where embeddings are frozen, the first block's input would be the only one without a gradient: another
    graph, for a block like all others.
    """
    if "block" in config.scope:
        model.get_input_embeddings().register_forward_hook(
            lambda _module, _args, output: output.requires_grad_(torch.is_grad_enabled())
        )


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
