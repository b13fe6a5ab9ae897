"""The loss: summed cross entropy, lm_head and all, on one chunk of the row at a time; and the forward that ends
in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cftdiag.recipe.blocks import Blocks
from cftdiag.recipe.packing import IGNORE
from cftdiag.recipe.train_recipe import DEFAULT_LOSS_CHUNKS, TrainRecipe

CrossEntropy = Callable[[Tensor, Tensor], Tensor]
#: Names that the regions of a loss have among the model's modules.
CROSS_ENTROPY, STEP = "cross_entropy", "step"


def has_own_head(model: nn.Module) -> bool:
    """True for a model of transformers whose body and lm_head can be called one after the other."""
    body = getattr(model, "base_model", model)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return body is not model and isinstance(head, nn.Module)


def install_loss(model: nn.Module, recipe: TrainRecipe) -> Blocks:
    """Give ``model`` a forward of ``(labels, input_ids, position_ids, ...)`` that returns the summed loss of
    labels that were shifted in the data; returns the regions (by name) that the scope compiles beside blocks.

    It is the *module's* forward, so that FSDP2's hooks on the root (which holds embedding, norm and lm_head)
    surround the loss as well. The regions are submodules, to be compiled in place by the caller. Raises
    ``ValueError`` for a model whose body cannot be told from its head.
    """
    if not has_own_head(model):
        raise ValueError(f"{type(model).__name__} has no body and lm_head that can be called one by one")
    body, head, router_loss = model.base_model, head_of(model), router_loss_of(model)
    chunks = recipe.loss_chunks or DEFAULT_LOSS_CHUNKS
    regions: Blocks = []
    cross_entropy: CrossEntropy = cross_entropy_sum
    if "loss" in recipe.regions:
        cross_entropy = CrossEntropySum()
        model.add_module(CROSS_ENTROPY, cross_entropy)
        regions.append((CROSS_ENTROPY, cross_entropy))
    if "model" in recipe.regions:
        regions.append((model.base_model_prefix, body))
    more = {"output_router_logits": True} if router_loss else {}

    def loss(labels: Tensor, batch: dict[str, Any]) -> Tensor:
        out = body(**batch, use_cache=False, **more)
        total = chunked_loss(out.last_hidden_state, labels, head, cross_entropy, chunks)
        if router_loss is None:
            return total
        # The router's loss is a mean: times this row's loss tokens it survives the division by the global
        # batch's.
        return total + router_loss(out.router_logits) * (labels != IGNORE).sum()

    if "model+loss" in recipe.regions:
        step = LossStep(loss)
        model.add_module(STEP, step)
        regions.append((STEP, step))
        loss = step
    model.forward = _as_forward(loss)
    return regions


class CrossEntropySum(nn.Module):
    """:func:`cross_entropy_sum` as a module, so that it can be compiled in place and has a name."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy_sum(logits, labels)


class LossStep(nn.Module):
    """Body, head and loss as one region. It holds none of them as a submodule: it is one of the model's."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self._loss = loss

    def forward(self, *args: Any) -> Tensor:
        return self._loss(*args)


def _as_forward(loss: Callable[[Tensor, dict[str, Any]], Tensor]) -> Callable[..., Tensor]:
    def forward(labels: Tensor, **batch: Any) -> Tensor:
        return loss(labels, batch)

    return forward


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed cross entropy of logits (..., vocabulary) against labels (...) that were shifted in the data; a
    float32 scalar.

    The upcast is in here so that a compiler fuses it with the softmax instead of storing float32 logits.
    """
    upcast = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(upcast.flatten(0, -2), labels.flatten(), ignore_index=IGNORE, reduction="sum")


def chunked_loss(
    hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor], cross_entropy: CrossEntropy, chunks: int
) -> Tensor:
    """``cross_entropy(head(hidden), labels)`` with the logits of one chunk alive at a time, in forward and in
    backward.

    ``hidden`` is B x S x H, ``labels`` B x S. Each chunk's logits are dropped after forward and computed
    again in backward: one more lm_head forward for ``1 / chunks`` of the memory.
    """
    if chunks == 1:
        return cross_entropy(head(hidden), labels)
    total = None
    for part, part_labels in zip(hidden.chunk(chunks, dim=1), labels.chunk(chunks, dim=1), strict=True):
        if torch.is_grad_enabled():
            loss = checkpoint(
                _head_and_loss,
                head,
                cross_entropy,
                part,
                part_labels,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        else:
            loss = cross_entropy(head(part), part_labels)
        total = loss if total is None else total + loss
    assert total is not None
    return total


def _head_and_loss(
    head: Callable[[Tensor], Tensor], cross_entropy: CrossEntropy, hidden: Tensor, labels: Tensor
) -> Tensor:
    return cross_entropy(head(hidden), labels)


def head_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """From last hidden states to logits as the model's own forward does it: lm_head, then scaling and soft
    capping where the family has them.

    :func:`verify_head` holds it against the model's own forward.
    """
    lm_head = model.get_output_embeddings()
    config = text_config(model.config)
    # One of these at most is not 1: Granite divides by logits_scaling, Cohere multiplies by logit_scale.
    factor = (getattr(model, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    limit = getattr(config, "final_logit_softcapping", None)
    # 0-D tensors: a Python float in the closure becomes a symbol under dynamic=True, which a checkpointed
    # chunk inside of a graph cannot take in.
    scale = None if factor == 1.0 else torch.tensor(factor)
    cap = None if limit is None else torch.tensor(float(limit))

    def head(hidden: Tensor) -> Tensor:
        logits = lm_head(hidden)
        if scale is not None:
            logits = logits * scale
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    return head


def text_config(config: Any) -> Any:
    """The part of a config that describes the language model; a multimodal one keeps it inside."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def verify_head(model: nn.Module) -> None:
    """Raise ``ValueError`` when :func:`head_of` and the model's own forward disagree; ``model`` is the plain
    one, with weights.

    The model's forward runs with its body replaced by given hidden states, so that this costs one lm_head on
    eight tokens.
    """
    weight = model.get_output_embeddings().weight
    hidden = torch.randn(1, 8, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    prefix = model.base_model_prefix
    body = getattr(model, prefix)
    with torch.no_grad():
        try:
            setattr(model, prefix, _GivenHidden(hidden))
            expected = model(input_ids=torch.zeros(1, 8, dtype=torch.long)).logits
        finally:
            setattr(model, prefix, body)
        if not torch.allclose(head_of(model)(hidden).float(), expected.float(), rtol=1e-2, atol=1e-3):
            name = type(model).__name__
            raise ValueError(
                f"{name} does more to its logits than lm_head, scaling and soft capping; this trainer would train another loss"
            )


class _GivenHidden(nn.Module):
    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self._hidden = hidden

    def forward(self, *args: Any, **kwargs: Any) -> _Output:
        return _Output(self._hidden)


class _Output:
    """What a body returns, whatever fields the family reads from it: the hidden states, and None for all
    else.
    """

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


def router_loss_of(model: nn.Module) -> Callable[[Any], Tensor] | None:
    """The load-balancing loss of a mixture of experts times its coefficient, when the config asks for it, as
    a mean over tokens.
    """
    config = model.config
    balance = getattr(sys.modules[type(model).__module__], "load_balancing_loss_func", None)
    if not getattr(config, "output_router_logits", False) or balance is None:
        return None
    experts = next(
        getattr(config, name) for name in ("num_local_experts", "num_experts") if hasattr(config, name)
    )
    return lambda router_logits: (
        config.router_aux_loss_coef * balance(router_logits, experts, config.num_experts_per_tok)
    )
