"""Activation checkpointing, then torch.compile, then FSDP2, and the training step for each compile scope."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from cftdiag.recipe.blocks import Blocks
from cftdiag.recipe.fake_world import fake_mesh

AC = ("none", "full", "selective")
SCOPES = ("none", "block", "loss", "block+loss", "model", "model+loss")
#: Names that `compile` is called with for what is not a block.
ROOT, LOSS, STEP = "<root>", "<loss>", "<step>"
Compile = Callable[[Any, str], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A wrapped model and its training step."""

    model: torch.nn.Module
    blocks: Blocks
    """(name without wrappers, wrapped module): the module whose call runs the block."""
    forward_loss: Callable[[Mapping[str, Any]], torch.Tensor]
    """One forward and loss: the arguments of a batch -> 0-d tensor."""

    def step(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Forward, loss, backward of one batch; returns the loss (0-d). Gradients stay on the parameters."""
        loss = self.forward_loss(batch)
        loss.backward()
        return loss.detach()

    def zero_grad(self) -> None:
        """Drop all gradients, as a training step does before the next forward."""
        self.model.zero_grad(set_to_none=True)


def causal_lm_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the next token.

    ``logits`` (batch, length, vocabulary) in any float dtype, upcast to float32 in here, so that a compiled
    loss fuses the upcast; ``labels`` (batch, length) with -100 ignored, not shifted.
    """
    targets = F.pad(labels, (0, 1), value=-100)[..., 1:]
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100)


def wrap_blocks(
    model: torch.nn.Module,
    blocks: Blocks,
    *,
    ac: str = "none",
    world_size: int = 1,
    compile: Compile | None = None,
    scope: str = "block",
) -> Program:
    """Wrap in the order checkpointing -> compile -> FSDP2 (each block, then the root), in place.

    ``compile(module, name)`` compiles a module in place, its result is ignored; ``compile(function, name)``
    returns the compiled function. ``world_size`` > 1 shards over torch's fake process group, rank 0. Call it
    under `SkipMode` for a model without weights.
    """
    if ac not in AC:
        raise ValueError(f"ac {ac!r} is not one of {', '.join(AC)}")
    if scope not in SCOPES:
        raise ValueError(f"compile scope {scope!r} is not one of {', '.join(SCOPES)}")
    mesh = fake_mesh(world_size) if world_size > 1 else None
    compile = compile or (lambda target, name: target)
    wrapped = []
    for fqn, block in blocks:
        if ac != "none":
            block = _checkpointed(model, fqn, block, ac)
        if scope.startswith("block"):
            compile(block, fqn)
        if mesh is not None:
            _shard(block, mesh)
        wrapped.append((fqn, block))
    if scope == "model":
        compile(model, ROOT)
    if mesh is not None:
        _shard(model, mesh)
    return Program(model=model, blocks=wrapped, forward_loss=_forward_loss(model, scope, compile))


def _forward_loss(
    model: torch.nn.Module, scope: str, compile: Compile
) -> Callable[[Mapping[str, Any]], torch.Tensor]:
    def joint(batch: Mapping[str, Any]) -> torch.Tensor:
        """The model's own loss where the batch has labels for it, else the mean of its first output."""
        out = model(**batch)
        loss = getattr(out, "loss", None)
        return loss if loss is not None else first_tensor(out).float().mean()

    if scope == "model+loss":
        return compile(joint, STEP)
    if not scope.endswith("loss"):
        return joint
    loss_function = compile(causal_lm_loss, LOSS)

    def separate(batch: Mapping[str, Any]) -> torch.Tensor:
        if "labels" not in batch:
            raise ValueError("a compiled loss needs labels in every batch")
        out = model(**{name: value for name, value in batch.items() if name != "labels"})
        return loss_function(out.logits, batch["labels"])

    return separate


def first_tensor(out: Any) -> torch.Tensor:
    """The first floating tensor in a model's output; ``ValueError`` when there is none."""
    for value in torch.utils._pytree.tree_leaves(out.to_tuple() if hasattr(out, "to_tuple") else out):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value
    raise ValueError(
        f"the model returned {type(out).__name__} without a floating tensor; return a loss or give Subject.step"
    )


def _checkpointed(model: torch.nn.Module, fqn: str, block: torch.nn.Module, ac: str) -> torch.nn.Module:
    options: dict[str, Any] = {}
    if ac == "selective":
        options["context_fn"] = functools.partial(
            create_selective_checkpoint_contexts, save_matmul_and_attention
        )
    wrapper = checkpoint_wrapper(block, preserve_rng_state=False, **options)
    parent, _, name = fqn.rpartition(".")
    setattr(model.get_submodule(parent), name, wrapper)
    return wrapper


def _shard(module: torch.nn.Module, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(module, mesh=mesh)


def save_matmul_and_attention(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Per-operator policy of selective checkpointing: keep what matrix products and attention return,
    recompute the rest.
    """
    name = op.name() if hasattr(op, "name") else str(op)
    packet = name.removeprefix("aten::").split(".")[0]
    saved = (
        packet in ("mm", "bmm", "addmm", "baddbmm", "_grouped_mm", "convolution")
        or "attention" in packet
        or "flash" in name
    )
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE
