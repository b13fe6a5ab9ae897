"""AdamW with the reference's defaults, learning-rate schedules, and one global gradient norm."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cftdiag.torch_private import world
from trainer.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Over the parameters that are trained, with its states in place. Raises ``ValueError`` when there are
    none.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("nothing to train: every parameter is frozen")
    # A kernel for many tensors wants them on one mesh: those that are split between ranks are a group.
    groups = [{"params": some} for some in _by_mesh(trained)]
    optimizer = torch.optim.AdamW(
        groups,
        lr=config.peak_learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
    )
    # As AdamW itself would begin, but for all parameters and now: a checkpoint is read into these, and has
    # the same keys whichever parameters (experts) have had a gradient by then.
    for parameter in trained:
        moments = {
            name: torch.zeros_like(parameter, memory_format=torch.preserve_format)
            for name in ("exp_avg", "exp_avg_sq")
        }
        optimizer.state[parameter] = {"step": torch.tensor(0.0, dtype=torch.get_default_dtype()), **moments}
    return optimizer


def learning_rate(config: TrainConfig, step: int, total: int) -> float:
    """Of optimizer step ``step`` (1-based) of ``total``: linear warm-up to the peak, then the schedule down
    to ``min_lr_ratio``.
    """
    if step <= config.warmup_steps:
        return config.peak_learning_rate * step / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    share = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[
        config.lr_scheduler
    ]
    if config.lr_scheduler != "constant":
        share = config.min_lr_ratio + (1 - config.min_lr_ratio) * share
    return config.peak_learning_rate * share


def gradient_norm(parameters: list[nn.Parameter]) -> Tensor:
    """2-norm over all gradients of all ranks, a scalar on the device."""
    groups = _by_mesh(parameters)
    norms = [torch.nn.utils.get_total_norm([p.grad for p in group if p.grad is not None]) for group in groups]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    if len(whole) == 1:
        return whole[0]
    norm = torch.linalg.vector_norm(torch.stack(whole))
    # Sums over one mesh dimension after the other may differ in the last bit between ranks, which would then
    # clip weights that they share by different scales.
    dist.broadcast(norm, 0)
    return norm


def _by_mesh(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters that live on one mesh together, in order."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(
            parameter
        )
    return list(groups.values())


def clip(parameters: list[nn.Parameter], norm: Tensor, limit: float) -> None:
    """Scale the gradients so that their norm is at most ``limit``; nothing is read back to the host."""
    scale = torch.clamp(limit / (norm + 1e-6), max=1.0)
    gradients = [p.grad for p in parameters if p.grad is not None]
    if gradients:  # one kernel for many tensors
        world.scale_all([g.to_local() if isinstance(g, DTensor) else g for g in gradients], scale)
