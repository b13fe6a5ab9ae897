"""From the sharded, factored model to a plain Hugging Face directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.lora import LoRALinear, merged
from trainer.model import Source, build_meta
from trainer.osft.linear import FACTORS, OSFTLinear, compose
from trainer.osft.surgery import Target
from trainer.weights import plain_modules, plain_name


def export(model: nn.Module, source: Source, targets: tuple[Target, ...], directory: Path, *, dtype: torch.dtype) -> None:
    """Write safetensors, config and tokenizer that ``AutoModelForCausalLM.from_pretrained`` reads. Collective; rank 0 writes.

    OSFT factors are multiplied out and adapters merged in float32 or wider, then cast to ``dtype``.
    """
    from transformers.utils import logging

    tensors = {}
    for name, value in plain_tensors(model, targets):
        if dist.get_rank() == 0:
            tensors[name] = value.to("cpu", dtype if value.is_floating_point() else value.dtype)
    if dist.get_rank() == 0:
        plain = build_meta(source, dtype=dtype)
        problems = plain.load_state_dict(tensors, assign=True, strict=False)
        # A tied weight is there under its first name only.
        missing = [name for name in problems.missing_keys if name not in _tied_names(plain)]
        assert not missing and not problems.unexpected_keys, (missing, problems.unexpected_keys)
        plain.tie_weights()
        plain.config.dtype = dtype
        logging.disable_progress_bar()
        plain.save_pretrained(directory)
        if source.tokenizer is not None:
            source.tokenizer.save_pretrained(directory)
    dist.barrier()


def plain_tensors(model: nn.Module, targets: tuple[Target, ...]) -> Iterator[tuple[str, Tensor]]:
    """Name and whole value of every parameter and persistent buffer as the plain model has them, one at a time. Collective."""
    transposed = {t.name for t in targets if t.transposed}
    factored = {name: m for name, m in plain_modules(model).items() if isinstance(m, (OSFTLinear, LoRALinear))}
    for name, layer in factored.items():
        full = {key: _full(value) for key, value in layer.named_parameters()}
        if isinstance(layer, OSFTLinear):
            weight = compose(full, upcast=torch.promote_types(layer.U_high.dtype, torch.float32))
        else:
            weight = merged(full, layer.scale)
        yield f"{name}.weight", weight.T.contiguous() if name in transposed else weight
    for key, value in model.state_dict().items():
        name = plain_name(key)
        parent, _, child = name.rpartition(".")
        if parent not in factored or child not in (*FACTORS, "A", "B", "weight"):
            yield name, _full(value)


def _full(value: Tensor) -> Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach()


def _tied_names(model: nn.Module) -> set[str]:
    everything = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return everything - {name for name, _ in model.named_parameters()}
