"""Compiled artifacts carried from one run to the next, in one file per rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from cftdiag import artifacts
from cftdiag.cache_pack import device
from trainer.config import TrainConfig


def _path(config: TrainConfig) -> Path:
    rank = os.environ.get("RANK", "0")
    return Path(f"{config.compile_cache}.rank{int(rank):05d}")


def _fingerprint() -> dict[str, str | None]:
    """Of this rank: its device, for each rank compiles for its own."""
    return artifacts.fingerprint(device())


def load_cache(config: TrainConfig) -> str | None:
    """Load what an earlier run saved; a line that says so, or why it starts cold. None when there is nothing to
    compile.
    """
    if config.compile_cache is None or config.scope == "none":
        return None
    said = f"compile cache {config.compile_cache}"
    if not _path(config).exists():
        return f"{said}: nothing saved yet"
    try:
        head, data = artifacts.read(_path(config))
        differs = head.differs(_fingerprint())
        if differs:
            told = ", ".join(f"{name} {old} there, {new} here" for name, (old, new) in differs.items())
            return f"{said}: nothing of it would hit ({told}); starting cold"
        info = torch.compiler.load_cache_artifacts(data)
    except artifacts.Unusable as error:
        return f"compile cache not loaded: {error}; starting cold"
    count = sum(len(keys) for keys in info.artifacts.values()) if info is not None else 0
    return f"{said}: {count} artifacts, {len(data) / 2**20:.1f} MiB loaded"


def save_cache(config: TrainConfig, *, say: Callable[[str], None]) -> None:
    """Save what this process has compiled so far."""
    if config.compile_cache is None or config.scope == "none":
        return
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        say(f"compile cache: backend {config.backend} leaves nothing to save")
        return
    data, info = saved
    path = _path(config)
    counts = {str(kind): len(keys) for kind, keys in info.artifacts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    artifacts.write(path, data, counts, _fingerprint())
    say(
        f"compile cache {config.compile_cache}: {sum(counts.values())} artifacts, {len(data) / 2**20:.1f} MiB saved"
    )
