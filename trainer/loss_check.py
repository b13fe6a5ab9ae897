"""Is the compiled loss the loss? Value and gradients by the run's own backend, on its own device, against
eager, on small real tensors.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cftdiag.recipe.compile import Compiler
from cftdiag.recipe.loss import LossStep, RowLoss, head_of, loss_of_row, text_config
from cftdiag.recipe.train_recipe import TrainRecipe
from cftdiag.torch_private import dynamo
from trainer.config import TrainConfig
from trainer.objectives import objective_of
from trainer.records import IGNORE

#: Largest relative L2 difference that is taken for rounding. A wrong loss or gradient is off by tenths.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
LOW_PRECISION = 3e-2
#: Positions of each row that is tried, for one chunk of the loss; several, so that sizes are symbols.
POSITIONS = (48, 40, 56)
WIDTH = 32


def compare_loss(
    config: TrainConfig,
    model_config: Any,
    backend: Callable[..., Any],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> list[str]:
    """What is wrong with the compiled loss of ``config.scope``, one text each; empty when value and gradients
    are those of eager.

    The head is a real one of the model's vocabulary, scaling and soft capping, but 32 wide. Forgets
    everything that Dynamo has compiled so far.
    """
    compiler = Compiler(TrainRecipe(scope=config.scope), backend, dynamic=config.dynamic)
    if not any(region.endswith("loss") for region in compiler.graphs):
        return []
    generator = torch.Generator().manual_seed(0)
    vocabulary = text_config(model_config).vocab_size
    lm_head = nn.Linear(WIDTH, vocabulary, bias=False)
    with torch.no_grad():
        lm_head.weight.copy_(torch.randn(vocabulary, WIDTH, generator=generator))
    lm_head.to(device, dtype)
    stand_in: Any = types.SimpleNamespace(
        config=model_config,
        get_output_embeddings=lambda: lm_head,
        logit_scale=getattr(model_config, "logit_scale", None),
    )
    head = head_of(stand_in)

    def whole(loss: RowLoss) -> Callable[..., Tensor]:
        return lambda hidden, *own: loss_of_row(hidden, own, head, loss, config.loss_chunks)[0]

    objective, other = objective_of(config), objective_of(config).loss
    eager = whole(objective.loss)
    if "loss" in compiler.graphs:
        compiled = whole(other)
        for part in (other.chunk, other.finish):
            if part is not None:
                compiler(part, "loss")
    else:
        compiled = LossStep(eager)
        compiler(compiled, "loss")

    found: list[str] = []
    try:
        for positions in POSITIONS:
            length = positions * config.loss_chunks
            hidden = torch.randn(1, length, WIDTH, generator=generator).to(device, dtype)
            labels = torch.randint(0, vocabulary, (1, length), generator=generator)
            labels[torch.rand(1, length, generator=generator) < 0.3] = IGNORE
            # four documents
            row = {"labels": labels, "position_ids": torch.arange(length)[None] % (length // 4)}
            batch = objective.extend(row)
            own = [batch[name].to(device) for name in objective.loss.inputs]
            wanted = _values(eager, hidden, own, lm_head)
            try:
                got = _values(compiled, hidden, own, lm_head)
            except Exception as error:  # noqa: BLE001 - whatever a backend raises here it would raise at step 1
                return [
                    f"the compiled loss raises {type(error).__name__}: {' '.join(str(error).split())[:300]}"
                ]
            found += _differences(wanted, got, TOLERANCE.get(dtype, LOW_PRECISION))
    finally:
        dynamo.reset()
    return list(dict.fromkeys(found))


def _values(
    loss: Callable[..., Tensor], hidden: Tensor, own: list[Tensor], lm_head: nn.Linear
) -> dict[str, Tensor]:
    lm_head.weight.grad = None
    given = hidden.clone().requires_grad_()
    value = loss(given, *own)
    value.backward()
    assert given.grad is not None and lm_head.weight.grad is not None
    return {
        "loss": value.detach(),
        "gradient of the hidden states": given.grad,
        "gradient of lm_head": lm_head.weight.grad,
    }


def _differences(wanted: dict[str, Tensor], got: dict[str, Tensor], tolerance: float) -> list[str]:
    found = []
    for name, value in wanted.items():
        relative = (
            (got[name].double() - value.double()).norm() / value.double().norm().clamp_min(1e-30)
        ).item()
        if not relative <= tolerance:  # also for NaN
            found.append(f"the compiled {name} differs from eager's by {relative:.1%}")
    return found
