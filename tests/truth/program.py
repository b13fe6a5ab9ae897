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
from cftdiag.recipe import (
    Program,
    TrainRecipe,
    apply_recipe,
    build_model,
    fake_mesh,
    find_blocks,
    load_config,
    make_batches,
)
from cftdiag.recipe.fsdp import make_mesh
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


def _wrap(model: torch.nn.Module, scenario: Scenario, backend: Any, real: bool) -> Program:
    world, recipe = scenario.world_size, TrainRecipe(scope=scenario.scope, ac=scenario.ac)
    mesh = None
    if world > 1:
        mesh = make_mesh("cpu", world) if real else fake_mesh(world)
    options = {"backend": backend, "dynamic": scenario.dynamic, "fullgraph": True}
    return apply_recipe(
        model, find_blocks(model), recipe, compile=lambda region, _: region.compile(**options), mesh=mesh
    )


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(*sys.argv[1:])
