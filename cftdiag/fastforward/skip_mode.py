"""`SkipMode`: the rules applied to everything outside compiled regions: embedding, lm_head, loss, optimizer,
collectives.
"""

from __future__ import annotations

from typing import Any

import torch

from cftdiag.capture.untraced import leave_our_frames_alone
from cftdiag.fastforward import collectives, host_reads
from cftdiag.fastforward.provenance import SKIPPED
from cftdiag.fastforward.rules import allocate, evaluate, level_of
from cftdiag.torch_private.tracing import DisableTorchFunction, OpOverload, TorchDispatchMode

collectives.install()
_PLAIN = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}


class SkipMode(TorchDispatchMode):
    """Use it around model construction (large initialisations are skipped), wrapping, and every training
    step, backward included.

    ``Tensor.tolist`` and ``Tensor.numpy``, which bypass the dispatcher, are declared as reads while the mode
    is active.
    """

    # Eager higher-order operators (FlexAttention outside a compiled region) come here instead of being
    # refused.
    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True: Dynamo refuses to compile under any other kind of mode."""
        return True

    def __enter__(self) -> SkipMode:
        leave_our_frames_alone()
        host_reads.declare()
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        host_reads.restore()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented  # a wrapper subclass (DTensor) unwraps itself; its inner operators come back here
        if not _PLAIN.issuperset(types):
            return func(*args, **kwargs)  # tracing: the next mode handles it
        if isinstance(func, OpOverload):
            # what the rules ask of tensors is nothing to a function mode of the script's, or of ours
            with DisableTorchFunction():
                return evaluate(func, args, kwargs)
        if level_of((args, kwargs)) == SKIPPED:
            return allocate(func, args, kwargs)
        return func(*args, **kwargs)
