"""One side of the comparison of recompiles: ``python -m tests.gpu.program real|TARGET``, torch's log of it on
stderr.

Two layers of the model, four lengths; for real on the CUDA device, or lowered for ``TARGET`` without one.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import torch

from cftdiag import catalogue
from cftdiag.fastforward import SkipMode
from cftdiag.recipe import apply_recipe, build_model, find_blocks, load_config, make_batches

MODEL, LAYERS = "Qwen3-4B", 2
LENGTHS, ROWS = (520, 640, 777, 1024), 2


def main(mode: str) -> None:
    real = mode == "real"
    entry = catalogue.find(MODEL)
    assert entry is not None
    model = build_model(
        load_config({"model_type": entry.model_type, **entry.config}), layers=LAYERS, weights=real
    )
    backend: Any = "inductor"
    skip: Any = contextlib.nullcontext
    if real:
        model.cuda()
    else:
        from cftdiag import target

        backend, skip = target.backend(mode), SkipMode
    with skip():
        program = apply_recipe(
            model,
            find_blocks(model),
            compile=lambda m, name: m.compile(backend=backend, dynamic=True, fullgraph=True),
        )
        for i, batch in enumerate(make_batches(model.config, lengths=LENGTHS, batch_size=ROWS, model=model)):
            print("STEP", i, batch.length, file=sys.stderr, flush=True)
            program.step(
                {k: v.cuda() if real and isinstance(v, torch.Tensor) else v for k, v in batch.kwargs.items()}
            )
            program.zero_grad()


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(*sys.argv[1:])
