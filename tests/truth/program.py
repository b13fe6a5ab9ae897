"""One run of one scenario: ``python -m tests.truth.program real|predicted NAME``, its log on stderr.

The log is torch's own (``TORCH_LOGS=recompiles,guards``), cut into steps by lines of our own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import torch

from cftdiag.fastforward import SkipMode
from cftdiag.recipe import build_model, find_blocks, load_config, make_batches, wrap_blocks
from tests.truth.scenarios import SCENARIOS, Scenario


def main(mode: str, name: str) -> None:
    scenario = SCENARIOS[name]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    real = mode == "real"
    if real and scenario.world_size > 1:
        torch.distributed.init_process_group("gloo")
    config = load_config(dict(scenario.config))
    model = build_model(config, dtype=scenario.dtype, weights=real)
    if scenario.osft:
        from tests.truth.osft import prepare

        prepare(model, real=real)
    backend: Any = "inductor"
    skip: Any = contextlib.nullcontext
    if not real:
        from cftdiag import target

        backend, skip = target.backend("cpu"), SkipMode
    with skip():
        program = _wrap(model, scenario, backend, real)
        batches = make_batches(
            model.config, lengths=scenario.lengths, batch_size=scenario.batch_size, model=model
        )
    for i, batch in enumerate(batches):
        print(f"STEP {i} {batch.length}", file=sys.stderr, flush=True)
        with skip():
            program.step(batch.kwargs)
        program.zero_grad()
    if real and scenario.world_size > 1:
        torch.distributed.destroy_process_group()


def _wrap(model: torch.nn.Module, scenario: Scenario, backend: Any, real: bool) -> Any:
    def compile_one(target: Any, name: str) -> Any:
        options = {"backend": backend, "dynamic": scenario.dynamic, "fullgraph": True}
        if not isinstance(target, torch.nn.Module):
            return torch.compile(target, **options)
        target.compile(**options)
        return target

    blocks = find_blocks(model)
    if not (real and scenario.world_size > 1):
        return wrap_blocks(
            model,
            blocks,
            ac=scenario.ac,
            world_size=scenario.world_size,
            compile=compile_one,
            scope=scenario.scope,
        )
    # `wrap_blocks` shards over the fake group only; the same order here, on the group that exists
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    program = wrap_blocks(model, blocks, ac=scenario.ac, compile=compile_one, scope=scenario.scope)
    mesh = init_device_mesh("cpu", (scenario.world_size,))
    for _, block in program.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return program


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(*sys.argv[1:])
