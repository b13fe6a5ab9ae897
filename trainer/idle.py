"""Parts of a model that a step on text never calls: the vision and audio towers of a multimodal one."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from cftdiag.recipe.blocks import Blocks, find_blocks
from cftdiag.recipe.stacks import stacks
from cftdiag.torch_private.tracing import TorchDispatchMode, local_scalar_dense
from cftdiag.torch_private.wrappers import strip

_known: weakref.WeakKeyDictionary[nn.Module, tuple[str, ...]] = weakref.WeakKeyDictionary()


def idle_modules(model: nn.Module) -> tuple[str, ...]:
    """Names of the largest modules that hold a stack of blocks and of which a forward of token ids calls nothing,
    and of those beside them, such as a projector of images; empty where the model has one stack.

    Looked up once, by a forward of the plain model, on meta as a rule. A model that cannot run there has none:
    all of it counts as trained. A model that was looked at before it was split or wrapped keeps its answer.
    """
    if model not in _known:
        _known[model] = _look(model)
    return _known[model]


def trained_blocks(model: nn.Module) -> Blocks:
    """The blocks of every stack that a step on text calls (:func:`cftdiag.recipe.blocks.find_blocks`)."""
    idle = tuple(f"{name}." for name in idle_modules(model))
    return [(name, block) for name, block in find_blocks(model) if not name.startswith(idle)]


def _look(model: nn.Module) -> tuple[str, ...]:
    rows = {name: [strip(fqn) for fqn, _ in blocks] for name, blocks in stacks(model).items()}
    if len(rows) < 2:
        return ()
    called = _called(model)
    untouched = [row for row in rows if not any(block in called for block in rows[row])]
    if len(untouched) == len(rows):
        return ()

    def idle(name: str) -> bool:
        return not any(other == name or other.startswith(f"{name}.") for other in called)

    roots: dict[str, None] = {}
    for row in untouched:
        root = row
        while (parent := root.rpartition(".")[0]) and idle(parent):
            root = parent
        roots[root] = None
        if parent:
            for key, child in model.get_submodule(parent).named_children():
                if idle(f"{parent}.{key}") and any(True for _ in child.parameters()):
                    roots[f"{parent}.{key}"] = None
    return tuple(roots)


def _called(model: nn.Module) -> set[str]:
    """Names of the modules that a forward of eight token ids calls; empty when it cannot run on meta."""
    called: set[str] = set()
    hooks = [
        module.register_forward_pre_hook(lambda _module, _args, name=name: called.add(name))
        for name, module in model.named_modules()
    ]
    device = next(model.parameters()).device
    try:
        with torch.no_grad(), device, _Values():
            ids = torch.zeros(1, 8, dtype=torch.long)
            model.base_model(input_ids=ids, position_ids=torch.arange(8)[None], use_cache=False)
    except Exception:  # noqa: BLE001 - the model's own code, on a device that it was not written for
        return set()
    finally:
        for hook in hooks:
            hook.remove()
    return called


class _Values(TorchDispatchMode):
    """What is read back from a tensor on meta is 1: masks ask whether everything is attended to."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is local_scalar_dense.default and args[0].is_meta:
            return 1
        return function(*args, **(kwargs or {}))
