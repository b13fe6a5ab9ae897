"""Which Linears a method trains in factored form: a table by ``config.model_type``."""

from __future__ import annotations

from torch import nn

from cftdiag.recipe.blocks import find_blocks

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_LLAMA = (*_ATTENTION, "gate_proj", "up_proj", "down_proj")

#: Substrings of the names of the target Linears. Families that are not listed use the names of Llama.
TARGETS: dict[str, tuple[str, ...]] = {
    "phi3": ("o_proj", "qkv_proj", "gate_up_proj", "down_proj"),
    "phi": ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "gpt_neox": ("query_key_value", "dense"),
    "gpt_oss": _ATTENTION,
    "mixtral": _ATTENTION,
    "granitemoe": _ATTENTION,
    "granitemoehybrid": (*_ATTENTION, "shared_mlp.input_linear", "shared_mlp.output_linear"),
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    "bloom": ("query_key_value", "dense"),
    "falcon": ("query_key_value", "dense"),
    "starcoder2": (*_ATTENTION, "c_fc", "c_proj"),
    "glm": (*_ATTENTION, "gate_up_proj", "down_proj"),
    "olmo2": _LLAMA,
}


def is_conv1d(module: nn.Module) -> bool:
    """True for the Linear of GPT-2, whose weight is stored in x out."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def find_targets(model: nn.Module, patterns: tuple[str, ...] = ()) -> dict[str, nn.Module]:
    """Linears (and Conv1D) inside the blocks whose name contains a pattern; the default patterns come from
    :data:`TARGETS`.

    Raises ``ValueError`` when nothing matches.
    """
    model_type = model.config.model_type
    wanted = patterns or TARGETS.get(model_type, _LLAMA)
    candidates = {
        f"{block}.{name}": module
        for block, parent in find_blocks(model)
        for name, module in parent.named_modules()
        if isinstance(module, nn.Linear) or is_conv1d(module)
    }
    found = {
        name: module for name, module in candidates.items() if any(pattern in name for pattern in wanted)
    }
    if not found:
        names = sorted({name.rpartition(".")[2] for name in candidates}) or ["none"]
        raise ValueError(
            f"no Linear of {model_type!r} matches {', '.join(wanted)}; give target patterns out of: {', '.join(names)}"
        )
    return found
