"""Kernels of a device that is not here: a Triton kernel that is launched outside compiled regions computes nothing.

Inside compiled regions nothing is replaced: Dynamo traces a launch and never runs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from cftdiag.fastforward import SKIPPED, mark
from cftdiag.rehearse.import_hooks import after_import
from cftdiag.torch_private.tracing import tree_leaves


class Launches:
    """Triton kernels that were launched and not run."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def notes(self) -> list[str]:
        """What the report says of them."""
        if not self.names:
            return []
        some = ", ".join(list(self.names)[:6]) + (", ..." if len(self.names) > 6 else "")
        return [
            f"Triton kernels that were launched outside compiled regions were not run: {some}; what they write is taken for uncomputed"
        ]


def install() -> Launches:
    """Stand in for every launch of the rest of this process."""
    launches = Launches()
    after_import("triton.runtime.jit", functools.partial(_replace, launches))
    return launches


def _replace(launches: Launches, module: ModuleType) -> None:
    def prepare(self: Any, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            launches.names.setdefault(_name(self))
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    mark(value, SKIPPED)

        return launch

    module.KernelInterface.__getitem__ = prepare


def _name(kernel: Any) -> str:
    """Name of the innermost function: autotuners and heuristics wrap it."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", type(kernel).__name__))
