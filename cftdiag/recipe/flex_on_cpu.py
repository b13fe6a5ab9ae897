"""FlexAttention checked on a CPU as it runs on a GPU.

On a CPU, torch refuses FlexAttention's backward, transformers asks for no log-sum-exp and refuses attention
sinks, and the block mask and the operator are compiled by Inductor on their own. None of that is the model's
doing, so each is taken out of the way here; the operator, its mask and score functions and its joint graph
are the real ones.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.attention.flex_attention as torch_flex
import transformers.integrations.flex_attention as integration
import transformers.masking_utils as masking
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cftdiag.recipe.errors import DepthNotReached

_create_block_mask = masking.create_block_mask


def _eager_block_mask(*args: Any, **kwargs: Any) -> Any:
    """The block mask without a compiled region of its own; inside a region that is being traced nothing
    changes.
    """
    if not torch.compiler.is_compiling():
        kwargs["_compile"] = False
    return _create_block_mask(*args, **kwargs)


def _as_on_a_gpu(function: types.FunctionType) -> types.FunctionType:
    """``flex_attention_forward`` with its test for a CPU never true: the same source lines, another constant.

    Its code compares ``query.device.type`` with ``"cpu"`` to leave out the log-sum-exp, and attention sinks
    need it.
    """
    constants = function.__code__.co_consts
    if constants.count("cpu") != 1:
        return function
    code = function.__code__.replace(co_consts=tuple("no cpu" if c == "cpu" else c for c in constants))
    changed = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    changed.__kwdefaults__ = function.__kwdefaults__
    return changed


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Inside, FlexAttention can be traced with gradients on a CPU; `DepthNotReached` when this torch has no
    way to.
    """
    if not hasattr(torch_flex, "_validate_device"):
        raise DepthNotReached(
            f"torch {torch.__version__} cannot trace FlexAttention's backward without a GPU; check with --attn sdpa, or on a machine with one",
            depth="joint",
            left=None,
        )
    forward = ALL_ATTENTION_FUNCTIONS["flex_attention"]
    with (
        mock.patch.object(torch_flex, "_validate_device", lambda query, key, value: None),
        mock.patch.object(masking, "create_block_mask", _eager_block_mask),
        mock.patch.object(integration, "create_block_mask", _eager_block_mask),
        mock.patch.object(
            integration.WrappedFlexAttention, "__call__", lambda self: torch_flex.flex_attention
        ),
    ):
        ALL_ATTENTION_FUNCTIONS["flex_attention"] = _as_on_a_gpu(forward)
        try:
            yield
        finally:
            ALL_ATTENTION_FUNCTIONS["flex_attention"] = forward


_installed = contextlib.ExitStack()


def install() -> None:
    """Enter `stand_ins` for the rest of this process; repeated calls do nothing."""
    if masking.create_block_mask is not _eager_block_mask:
        _installed.enter_context(stand_ins())
