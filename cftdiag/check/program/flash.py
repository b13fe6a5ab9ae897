"""Stand-ins for flash-attention kernels that are not installed."""

from __future__ import annotations


def install() -> None:
    """Make transformers find flash-attention kernels; nothing to do where they are installed."""
    raise ValueError("flash attention stand-ins are not available yet; use sdpa or eager")
