"""The catalogue: published model configurations with their parameter counts. Torch-free.

``cftdiag/data/models.json`` holds, for each entry, what ``config.json`` of the hub repository says of the
architecture, and the number of parameters that transformers builds from it (tied weights once). ``verified``
is True where that number agrees with the repository's published total; ``source`` names the public files that
the configuration was taken from.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One published configuration."""

    name: str
    """Short name, ``Qwen3-4B``."""
    hub_id: str
    """``owner/name`` on the Hugging Face hub."""
    model_type: str
    """transformers' name of the architecture."""
    config: Mapping[str, Any]
    """Keyword arguments of the architecture's config class."""
    params: int
    """Parameters of the causal language model, tied weights once."""
    verified: bool
    """Whether ``params`` agrees with the published total."""
    params_source: str
    source: str
    hub_total: int | None = None
    """The published total where it differs by construction (``note`` says how)."""
    note: str | None = None

    @property
    def layers(self) -> int | None:
        """Number of transformer blocks, None where the configuration leaves it to the architecture's default."""
        for key in ("num_hidden_layers", "n_layer", "num_layers"):
            if isinstance(self.config.get(key), int):
                return self.config[key]
        return None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict."""
        return {**dataclasses.asdict(self), "layers": self.layers}


@functools.cache
def entries() -> tuple[Entry, ...]:
    """All entries, in the file's order: families together, small before large."""
    text = resources.files("cftdiag").joinpath("data/models.json").read_text(encoding="utf-8")
    return tuple(Entry(**item) for item in json.loads(text))


def find(name: str) -> Entry | None:
    """The entry of this name or hub id, in any case; None when there is none."""
    wanted = name.strip().lower()
    return next((entry for entry in entries() if wanted in (entry.name.lower(), entry.hub_id.lower())), None)


def search(text: str | None = None) -> tuple[Entry, ...]:
    """Entries whose name, hub id or architecture contains every word of ``text``, in any case; all of them
    without a text.
    """
    words = (text or "").lower().split()
    return tuple(
        entry
        for entry in entries()
        if all(word in f"{entry.name} {entry.hub_id} {entry.model_type}".lower() for word in words)
    )


def close_matches(name: str, count: int = 3) -> list[str]:
    """Names of the entries closest in spelling to ``name`` (a name or a hub id), best first; empty when
    nothing is close.
    """
    wanted = name.strip().lower()
    spellings: dict[str, str] = {}
    for entry in entries():
        spellings[entry.name.lower()] = entry.name
        spellings[entry.hub_id.lower()] = entry.name
    # More are asked for than wanted: a name and its hub id are often both close.
    close = difflib.get_close_matches(wanted, spellings, n=2 * count, cutoff=0.6)
    close += difflib.get_close_matches(wanted.rpartition("/")[2], spellings, n=2 * count, cutoff=0.6)
    return list(dict.fromkeys(spellings[match] for match in close))[:count]
