"""How much each block changes what passes through it: the measure behind adaptive ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.idle import trained_blocks


def layer_importance(model: nn.Module, batches: Callable[[], list[dict[str, Any]]]) -> dict[str, float]:
    """Mean cosine of each block's input and output over the tokens of some batches, by block name (arXiv
    2504.07097, I(l)).

    A block that barely turns its input keeps more of its directions frozen. ``model`` is the plain one.
    """
    sums = dict.fromkeys(dict(trained_blocks(model)), 0.0)
    count = 0

    def watch(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            before: Tensor = args[0] if args else kwargs["hidden_states"]
            after: Tensor = output[0] if isinstance(output, tuple) else output
            sums[name] += F.cosine_similarity(before.float(), after.float(), dim=-1).sum().item()

        return hook

    hooks = [
        block.register_forward_hook(watch(name), with_kwargs=True) for name, block in trained_blocks(model)
    ]
    try:
        with torch.no_grad():
            for batch in batches():
                count += batch["input_ids"].numel()
                model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: total / max(count, 1) for name, total in sums.items()}
