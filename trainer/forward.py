"""What one call of the trained model is: a packed row in, its summed loss out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from trainer.compile import Compiler
from trainer.loss import CrossEntropy, chunked_loss, cross_entropy_sum, head_of, router_loss_of
from trainer.records import IGNORE


def install_loss_forward(
    model: nn.Module, compiler: Compiler, *, chunks: int, cross_entropy: CrossEntropy = cross_entropy_sum
) -> None:
    """Give ``model`` a forward of ``(labels, input_ids, position_ids, ...)`` that returns the summed loss.

    It is the *module's* forward, so that FSDP2's hooks on the root (which holds embedding, norm and lm_head)
    surround the loss as well. Compiled here: the loss, the body, or both, as the compiler's scope says;
    blocks are compiled by :meth:`Compiler.blocks`.
    """
    body = model.base_model
    head = head_of(model)
    router_loss = router_loss_of(model)
    cross_entropy = compiler.function("loss", cross_entropy)

    def hidden_states(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        out = body(**batch, use_cache=False, **({"output_router_logits": True} if router_loss else {}))
        return out.last_hidden_state, router_loss(out.router_logits) if router_loss else None

    hidden_states = compiler.function("model", hidden_states)

    def loss(labels: Tensor, batch: dict[str, Tensor]) -> Tensor:
        hidden, balance = hidden_states(batch)
        total = chunked_loss(hidden, labels, head, cross_entropy, chunks)
        # The router's loss is a mean: times this row's loss tokens it survives the division by the global
        # batch's.
        return total if balance is None else total + balance * (labels != IGNORE).sum()

    model.forward = _as_forward(compiler.function("model+loss", loss))


def _as_forward(loss: Callable[[Tensor, dict[str, Tensor]], Tensor]) -> Callable[..., Tensor]:
    def forward(labels: Tensor, **batch: Any) -> Tensor:
        return loss(labels, batch)

    return forward
