"""What a rehearsed script meets in place of torch's own: compile wrappers, function modes, generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cftdiag.torch_private.names import Name, by_alias, resolve

_LOST = "a training script cannot be checked without its GPUs (check -- COMMAND)"

_COMM_HOOK = Name(
    "torch.distributed:_register_comm_hook",
    "rehearsal",
    "a script that uses DDP cannot be rehearsed",
    needed=False,
)

NAMES = (
    Name("torch:_TorchCompileInductorWrapper", "rehearsal", _LOST, alias="CompileByInductor"),
    Name("torch:_TorchCompileWrapper", "rehearsal", _LOST, alias="CompileByName"),
    Name("torch._dynamo.eval_frame:OptimizeContext", "rehearsal", _LOST),
    Name("torch._dynamo:trace_rules", "rehearsal", "why a frame was never compiled is not told"),
    Name(
        "torch._dynamo:trace_rules.check",
        "rehearsal",
        "why a frame was never compiled is not told",
        alias="skips",
    ),
    Name("torch.overrides:_len_torch_function_stack", "rehearsal", _LOST),
    Name("torch.overrides:_pop_mode", "rehearsal", _LOST),
    Name("torch.overrides:_push_mode", "rehearsal", _LOST, leading=("mode",)),
    _COMM_HOOK,
    Name("torch:_C.Generator", "rehearsal", _LOST),
    Name("torch.utils._device:DeviceContext", "rehearsal", _LOST),
)
_NAMES = by_alias(NAMES)


def __getattr__(name: str) -> Any:
    return resolve(_NAMES, name, __name__)


def replace_comm_hook(new: Callable[..., None]) -> Callable[..., None]:
    """Have DDP's reducers given their hook by ``new(reducer, state, hook)``; returns torch's own function."""
    real: Callable[..., None] = _COMM_HOOK.get()
    owner, name = _COMM_HOOK.owner()
    setattr(owner, name, new)
    return real
