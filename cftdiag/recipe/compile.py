"""torch.compile by scope: what is asked for is compiled whole, in place, and proved to exist."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from cftdiag.errors import InputError
from cftdiag.options import DYNAMIC
from cftdiag.recipe.loss import LossRegion
from cftdiag.recipe.train_recipe import TrainRecipe
from cftdiag.torch_settings import torch_config


class Compiler:
    """Compiles regions in place and counts the graphs that the backend was given for each kind of region."""

    def __init__(self, recipe: TrainRecipe, backend: Callable[..., Any], *, dynamic: str = "true") -> None:
        """``backend`` is a callable of ``(graph module, example inputs)``; ``dynamic`` is ``auto``, ``true``
        or ``false``.
        """
        self._dynamic = DYNAMIC[dynamic]
        self._counted = {region: _Counted(backend) for region in recipe.regions}

    @property
    def graphs(self) -> dict[str, int]:
        """Graphs compiled so far, by kind of region (``block``, ``loss``, ``model``, ``model+loss``)."""
        return {region: counted.graphs for region, counted in self._counted.items()}

    def __call__(self, module: nn.Module, name: str) -> None:
        """Compile a region of :func:`cftdiag.recipe.apply_recipe`: state-dict names stay, and hooks that FSDP2
        adds later stay outside of the graph.
        """
        # A scope has one kind of region beside the loss.
        loss = isinstance(module, LossRegion)
        module.compile(**self.kwargs("loss" if loss else next(k for k in self._counted if k != "loss")))

    def kwargs(self, region: str) -> dict[str, Any]:
        """The arguments of torch.compile for a kind of region; all blocks share one backend object, without
        which they would not share graphs.
        """
        return {"backend": self._counted[region], "fullgraph": True, "dynamic": self._dynamic}

    def verify(self) -> None:
        """After a step: raise ``ValueError`` when a region that was asked for has no graph, because it then
        runs eagerly.
        """
        empty = [region for region, graphs in self.graphs.items() if graphs == 0]
        if empty:
            raise ValueError(
                f"compile scope {'+'.join(empty)}: a step ran and nothing was compiled, so training is eager; run `cftdiag check`"
            )


class _Counted:
    """A backend that counts the graphs it is given."""

    def __init__(self, backend: Callable[..., Any]) -> None:
        self._backend = backend
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any, **kwargs: Any) -> Any:
        compiled = self._backend(graph, inputs, **kwargs)
        # Counted afterwards: AOTAutograd may send Dynamo back to trace again, and the first attempt is then
        # thrown away.
        self.graphs += 1
        return compiled


#: Global flags set while a compiled model trains, and why. A name that this torch does not have is left out.
_DYNAMO = {
    # Defensive: with checkpointing inside a compiled block, side effects of the forward must not be replayed
    # by the recomputation.
    "skip_fwd_side_effects_in_bwd_under_checkpoint": True,
    # The floats of a block (norm epsilon, attention scale) are constants. With dynamic=True they would first
    # be symbols, and AOTAutograd, which takes none, would send Dynamo back: every block would be traced
    # twice.
    "specialize_float": True,
}
#: First torch whose mix-order reduction writes through views: https://github.com/pytorch/pytorch/issues/193061
_MIX_ORDER_RIGHT = (2, 15)


def inductor_settings(torch_version: str) -> dict[str, Any]:
    """Inductor's flags of a compiled run under a version of torch.

    Fusion of reductions in mixed order otherwise guards on sizes (`2560*B*S < 5242880`): a recompile hundreds
    of steps into training. Before 2.15 it drops gradients that go into views of one buffer, so it is switched
    off there, at the cost of one more read of the data in a norm's backward; from 2.15 on it only stops asking.
    """
    version = tuple(int(part) for part in re.findall(r"\d+", torch_version)[:2])
    if version < _MIX_ORDER_RIGHT:
        return {"triton.mix_order_reduction": False}
    return {"triton.mix_order_reduction_non_strict_mode": True}


@contextlib.contextmanager
def compile_settings(scope: str, planned: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Set the flags of a compiled run and restore them; yields what was set, by dotted name.

    ``planned`` are dotted torch config names of a plan; one that this torch does not have raises
    ``ValueError``.
    """
    if scope == "none":
        yield {}
        return
    from cftdiag.torch_private.dynamo import config as dynamo
    from cftdiag.torch_private.inductor import config as inductor

    with contextlib.ExitStack() as stack:
        done: dict[str, Any] = {}
        for module, values in ((dynamo, _DYNAMO), (inductor, inductor_settings(torch.__version__))):
            known = {name: value for name, value in values.items() if _has(module, name)}
            stack.enter_context(module.patch(known))  # type: ignore[attr-defined]
            done |= {f"{module.__name__}.{name}": value for name, value in known.items()}
        for dotted, value in planned.items():
            try:
                stack.enter_context(torch_config({dotted: value}))
            except InputError as error:
                raise ValueError(f"the compile plan cannot be followed: {error}") from error
            done[dotted] = value
        yield done


def static_settings() -> dict[str, Any]:
    """The flags of a compiled run that this torch has, by dotted name: for a check of the same program in
    other processes.
    """
    with compile_settings("block", {}) as done:
        return dict(done)


def _has(module: Any, dotted: str) -> bool:
    for name in dotted.split("."):
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return True
