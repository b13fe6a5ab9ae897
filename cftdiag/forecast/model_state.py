"""Run a step and leave the model as it was: what the step stored in plain attributes and buffers is put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from cftdiag.torch_private.objects import TABLES, buffers, version


@contextlib.contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Put back, afterwards, plain attributes and buffers of all modules, and the random state."""
    kept = [_Kept(module) for module in model.modules()]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for module in kept:
                module.put_back()


class _Kept:
    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.attributes = {k: v for k, v in vars(module).items() if k not in TABLES}
        self.contents = {
            k: v.copy()
            for k, v in self.attributes.items()
            if type(v) in (dict, list) and not k.startswith("_")
        }
        self.buffers = dict(buffers(module))
        # a clone is read only when the version shows that the buffer was written to
        self.values = {
            k: (version(b), b.clone()) for k, b in self.buffers.items() if b is not None and not b.is_meta
        }

    def put_back(self) -> None:
        now = vars(self.module)
        for name in [k for k in now if k not in self.attributes and k not in TABLES]:
            del now[name]
        for name, value in self.attributes.items():
            if now.get(name) is not value:
                now[name] = value
        for name, content in self.contents.items():
            value = now[name]
            if not _same_items(value, content):
                value.clear()
                value.extend(content) if isinstance(value, list) else value.update(content)
        own = buffers(self.module)
        if not _same_items(own, self.buffers):
            own.clear()
            own.update(self.buffers)
        with torch.no_grad():
            for name, (written, value) in self.values.items():
                if version(self.buffers[name]) != written:
                    self.buffers[name].copy_(value)


def _same_items(a: Any, b: Any) -> bool:
    """True for the same objects in the same order; ``==`` would ask tensors."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(a[key] is b[key] for key in a)
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
