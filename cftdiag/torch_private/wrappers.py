"""Names that wrappers put into a model: torch.compile, checkpoint_wrapper, FSDP. Torch-free."""

from __future__ import annotations

import re
from typing import Any

from cftdiag.torch_private.names import Name

ORIGINAL, CHECKPOINTED, SHARDED = "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"
#: Attributes by which a wrapper holds the module that it wraps.
WRAPPERS = frozenset({ORIGINAL, CHECKPOINTED, SHARDED})

NAMES = (
    Name(
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:_CHECKPOINT_WRAPPED_MODULE",
        "blocks",
        "checkpointed blocks are reported under a wrapper's name",
        equals=CHECKPOINTED,
    ),
    Name(
        "torch.distributed.fsdp._common_utils:FSDP_WRAPPED_MODULE",
        "blocks",
        "blocks under FSDP1 are reported under a wrapper's name",
        equals=SHARDED,
        needed=False,
    ),
)

# DDP holds its module as `module`, a name that a model of the user's may have too: it is stripped where another
# wrapper follows.
_IN_NAME = re.compile(rf"(?:^|\.)(?:{'|'.join(sorted(WRAPPERS))}|module(?=\._))(?=\.|$)")


def strip(fqn: str) -> str:
    """``model.layers.0._checkpoint_wrapped_module._orig_mod`` -> ``model.layers.0``."""
    return _IN_NAME.sub("", fqn).lstrip(".")


def unwrap(module: Any) -> Any:
    """The innermost module under wrappers; its class is the block's class."""
    while True:
        inner = next(
            (module._modules[name] for name in WRAPPERS if module._modules.get(name) is not None), None
        )
        if inner is None:
            return module
        module = inner


def class_name(module: Any) -> str:
    """Class of a module; FSDP2 gives each sharded module a class of its own (``FSDPBlock``) in front of the
    real one.
    """
    bases = type(module).__mro__
    return bases[2].__name__ if len(bases) > 2 and bases[1].__name__ == "FSDPModule" else bases[0].__name__
