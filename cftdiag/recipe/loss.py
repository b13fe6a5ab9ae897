"""The loss: lm_head and what an objective makes of the logits, on one chunk of the row at a time; and the forward
that ends in it. Without an objective it is summed cross entropy.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cftdiag.recipe.blocks import Blocks
from cftdiag.recipe.packing import IGNORE
from cftdiag.recipe.train_recipe import DEFAULT_LOSS_CHUNKS, TrainRecipe

#: Names that the regions of a loss have among the model's modules.
CROSS_ENTROPY, ROW_LOSS, STEP = "cross_entropy", "row_loss", "step"


def has_own_head(model: nn.Module) -> bool:
    """True for a model of transformers whose body and lm_head can be called one after the other."""
    body = getattr(model, "base_model", model)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return body is not model and isinstance(head, nn.Module)


class LossRegion(nn.Module):
    """A part of a loss that is compiled by itself where the scope says ``loss``.

    Each part is a class of its own: graphs are kept by the code of ``forward``, and two parts that shared it would
    drive each other out.
    """


class CrossEntropySum(LossRegion):
    """:func:`cross_entropy_sum` as a module, so that it can be compiled in place and has a name."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy_sum(logits, labels)


def learnt_positions(batch: Mapping[str, Tensor]) -> Tensor:
    """How many positions of a row have a label."""
    return (batch["labels"] != IGNORE).sum()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RowLoss:
    """From the logits of a packed row to its loss, in a form of which one chunk of the row is alive at a time.

    Without ``finish`` the values of the chunks add up to the loss. With it they are put one after another, 1 x S,
    and ``finish(values, *per_row)`` returns the row's summed loss (0-d) and its figures.
    """

    chunk: LossRegion = dataclasses.field(default_factory=CrossEntropySum)
    """``chunk(logits, *per_token)`` of logits B x S x V: 0-d, or B x S where there is a ``finish``."""
    per_token: tuple[str, ...] = ("labels",)
    """Tensors of the batch, B x S, that are cut with the row."""
    finish: LossRegion | None = None
    per_row: tuple[str, ...] = ()
    """Tensors of the batch that ``finish`` takes."""
    figures: tuple[str, ...] = ()
    """Names of the figures, which are summed over rows and divided as the loss is. Without gradients the model
    returns the values of the chunks as well.
    """
    weight: Callable[[Mapping[str, Tensor]], Tensor] = learnt_positions
    """What a row counts in the mean that is trained: its part of the divisor."""
    name: str = CROSS_ENTROPY
    """Of the chunk among the model's modules."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the loss takes of a batch; the rest is the model's."""
        return (*self.per_token, *self.per_row)


def install_loss(model: nn.Module, recipe: TrainRecipe) -> Blocks:
    """Give ``model`` a forward of the tensors of a batch that returns the row's summed loss (labels were shifted
    in the data), with its figures where the loss has some; returns the regions (by name) that the scope compiles
    beside blocks.

    It is the *module's* forward, so that FSDP2's hooks on the root (which holds embedding, norm and lm_head)
    surround the loss as well. The regions are submodules, to be compiled in place by the caller. Raises
    ``ValueError`` for a model whose body cannot be told from its head.
    """
    if not has_own_head(model):
        raise ValueError(f"{type(model).__name__} has no body and lm_head that can be called one by one")
    body, head, router_loss = model.base_model, head_of(model), router_loss_of(model)
    chunks = recipe.loss_chunks or DEFAULT_LOSS_CHUNKS
    row_loss = recipe.loss or RowLoss()
    regions: Blocks = []
    if "loss" in recipe.regions:
        parts = [(row_loss.name, row_loss.chunk), (ROW_LOSS, row_loss.finish)]
        for name, part in parts:
            if part is not None:
                model.add_module(name, part)
                regions.append((name, part))
    if "model" in recipe.regions:
        regions.append((model.base_model_prefix, body))
    more = {"output_router_logits": True} if router_loss else {}
    names = row_loss.inputs

    def loss(*given: Any) -> Any:
        *own, batch = given
        out = body(**batch, use_cache=False, **more)
        total, *more_of_it = loss_of_row(out.last_hidden_state, own, head, row_loss, chunks)
        if router_loss is not None:
            # A mean: times this row's weight it survives the division by the global batch's.
            weight = row_loss.weight(dict(zip(names, own, strict=True)))
            total = total + router_loss(out.router_logits) * weight
        return (total, *more_of_it) if more_of_it else total

    if "model+loss" in recipe.regions:
        step = LossStep(loss)
        model.add_module(STEP, step)
        regions.append((STEP, step))
        loss = step
    model.forward = _as_forward(loss, names)
    return regions


def loss_of_row(
    hidden: Tensor, own: Sequence[Tensor], head: Callable[[Tensor], Tensor], row_loss: RowLoss, chunks: int
) -> tuple[Tensor, ...]:
    """From the last hidden states of a row, B x S x H, to its summed loss; with figures where the loss has some, and
    without gradients the values of its chunks as well. ``own`` are the tensors that ``row_loss.inputs`` names.
    """
    count = len(row_loss.per_token)
    chunk_values = of_chunks(hidden, own[:count], head, row_loss.chunk, chunks)
    if row_loss.finish is None:
        return (_summed(chunk_values),)
    values = torch.cat(chunk_values, dim=1)
    total, figures = row_loss.finish(values, *own[count:])
    return (total, figures) if torch.is_grad_enabled() else (total, figures, values)


class LossStep(nn.Module):
    """Body, head and loss as one region. It holds none of them as a submodule: it is one of the model's."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__()
        self._loss = loss

    def forward(self, *args: Any) -> Any:
        return self._loss(*args)


def _as_forward(loss: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    def forward(**batch: Any) -> Any:
        own = [batch.pop(name) for name in names]
        return loss(*own, batch)

    return forward


class TokenLogProbs(LossRegion):
    """The log-probability of each label, B x S: float32 (float64 stays), 0 where there is no label."""

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        # A 0-D tensor, for the reason that head_of has.
        self.cooled = None if temperature == 1.0 else torch.tensor(temperature)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        upcast = logits if logits.dtype == torch.float64 else logits.float()
        if self.cooled is not None:
            upcast = upcast / self.cooled
        losses = F.cross_entropy(
            upcast.flatten(0, -2), labels.flatten(), ignore_index=IGNORE, reduction="none"
        )
        return -losses.view(labels.shape)


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed cross entropy of logits (..., vocabulary) against labels (...) that were shifted in the data; a
    float32 scalar.

    The upcast is in here so that a compiler fuses it with the softmax instead of storing float32 logits.
    """
    upcast = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(upcast.flatten(0, -2), labels.flatten(), ignore_index=IGNORE, reduction="sum")


def of_chunks(
    hidden: Tensor,
    tokens: Sequence[Tensor],
    head: Callable[[Tensor], Tensor],
    chunk: Callable[..., Tensor],
    chunks: int,
) -> list[Tensor]:
    """``chunk(head(hidden), *tokens)`` of each chunk of a row, with the logits of one alive at a time, in forward
    and in backward.

    ``hidden`` is B x S x H, each of ``tokens`` B x S. Each chunk's logits are dropped after forward and computed
    again in backward: one more lm_head forward for ``1 / chunks`` of the memory.
    """
    if chunks == 1:
        return [chunk(head(hidden), *tokens)]
    values = []
    for part, *cut in zip(
        hidden.chunk(chunks, dim=1), *(t.chunk(chunks, dim=1) for t in tokens), strict=True
    ):
        if torch.is_grad_enabled():
            value = checkpoint(
                _head_and_chunk, head, chunk, part, *cut, use_reentrant=False, preserve_rng_state=False
            )
        else:
            value = chunk(head(part), *cut)
        values.append(value)
    return values


def chunked_loss(
    hidden: Tensor,
    tokens: Sequence[Tensor],
    head: Callable[[Tensor], Tensor],
    chunk: Callable[..., Tensor],
    chunks: int,
) -> Tensor:
    """The sum of :func:`of_chunks`."""
    return _summed(of_chunks(hidden, tokens, head, chunk, chunks))


def _summed(values: Sequence[Tensor]) -> Tensor:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _head_and_chunk(
    head: Callable[[Tensor], Tensor], chunk: Callable[..., Tensor], hidden: Tensor, *tokens: Tensor
) -> Tensor:
    return chunk(head(hidden), *tokens)


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
