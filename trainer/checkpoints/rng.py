"""The random-number generators of one rank: seeded alike in every run, carried from checkpoint to run."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def seed(value: int, rank: int) -> None:
    """Seed every generator of this process; ranks draw different numbers (dropout on different rows)."""
    combined = value * 100_003 + rank
    random.seed(combined)
    torch.manual_seed(combined)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(combined % 2**32)


def capture(device: torch.device) -> dict[str, Any]:
    """JSON-ready state of Python's, torch's and the device's generators, and of numpy's where it is imported."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(words), gauss], "torch": _text(torch.get_rng_state())}
    if device.type == "cuda":
        state["cuda"] = _text(torch.cuda.get_rng_state(device))
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [name, keys.tolist(), position, has_gauss, cached]
    return state


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Set what :func:`capture` returned; a generator that is not in ``state`` is left as it is."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(_tensor(state["torch"]))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(_tensor(state["cuda"]), device)
    if (numpy := sys.modules.get("numpy")) is not None and "numpy" in state:
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))


def _text(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _tensor(text: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
