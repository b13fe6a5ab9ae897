"""The same bits from the same start, on request."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """While entered, torch takes only algorithms that add in one order. Enter it before CUDA is used. Raises
    ``ValueError`` naming an operation that has no such algorithm.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise ValueError(
            f"--deterministic: {' '.join(str(error).split('. ')[0].split())}; train without it"
        ) from error
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
