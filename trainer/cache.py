"""Compiled artifacts carried from one run to the next, in one file per rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from trainer.config import TrainConfig


def _path(config: TrainConfig) -> Path:
    rank = os.environ.get("RANK", "0")
    return Path(f"{config.compile_cache}.rank{int(rank):05d}")


def load_cache(config: TrainConfig) -> str | None:
    """Load what an earlier run saved; a line that says so, None when there is nothing to load or nothing to
    compile.
    """
    if config.compile_cache is None or config.scope == "none":
        return None
    try:
        data = _path(config).read_bytes()
    except OSError:
        return f"compile cache {config.compile_cache}: nothing saved yet"
    info = torch.compiler.load_cache_artifacts(data)
    count = sum(len(keys) for keys in info.artifacts.values()) if info is not None else 0
    return f"compile cache {config.compile_cache}: {count} artifacts, {len(data) / 2**20:.1f} MiB loaded"


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
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_bytes(data)
    partial.replace(path)
    say(
        f"compile cache {config.compile_cache}: {sum(len(keys) for keys in info.artifacts.values())} artifacts, {len(data) / 2**20:.1f} MiB saved"
    )
