"""Activation checkpointing recomputes random operators from the default generator of the device; a stand-in,
for a device that is not there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch


class _StandIn(torch.Generator):
    """A CPU generator that says it is on the absent device, which is what AOTAutograd looks at."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    def clone_state(self) -> _StandIn:
        copy = _StandIn()
        copy.set_state(self.get_state())
        return copy


STAND_IN = _StandIn()


def answers() -> dict[str, Any]:
    """Functions and values of ``torch.cuda`` that give the generator, those of them that this torch has."""
    found = {"default_generators": (STAND_IN,), "_get_generator": lambda device: STAND_IN}
    return {name: value for name, value in found.items() if hasattr(torch.cuda, name)}


@contextlib.contextmanager
def available() -> Iterator[None]:
    """The generator is there inside the block; needed when a compiled region with recomputed random operators
    runs for the first time.
    """
    with mock.patch.multiple(torch.cuda, **answers()):
        yield
