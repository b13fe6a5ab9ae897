"""The process that trains one arm of ``cftdiag bench --model``: the recipe of the check, with real weights.

``python -m cftdiag.bench.worker SPEC`` with a JSON object; torchrun starts several. Weights are those of a new
model, random by a fixed seed: what a step takes does not depend on them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cftdiag.errors import CheckError, InputError
from cftdiag.monitor import gate, injected
from cftdiag.options import DYNAMIC, CheckOptions
from cftdiag.passes.prepare import Prepared, blocks_of, padded, prepare
from cftdiag.recipe import apply_recipe
from cftdiag.recipe.compile import Compiler, compile_settings
from cftdiag.recipe.fsdp import make_mesh
from cftdiag.subject import resolve

SEED = 0
LEARNING_RATE = 1e-4


def main(text: str) -> int:
    """Train as the JSON of ``text`` says until the gate ends it; the exit code is that of a verb."""
    spec = json.loads(text)
    try:
        with _ranks(spec["ranks"]):
            _train(spec)
    except CheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


@contextlib.contextmanager
def _ranks(count: int) -> Any:
    if count == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def _train(spec: Mapping[str, Any]) -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    scope, pad, backend = spec["scope"], spec["pad"], spec["backend"]
    origin = resolve(spec["model"])
    asked = dict(spec["options"])
    if origin.from_config and asked.get("dtype") is None:
        asked["dtype"] = "bfloat16" if cuda else "float32"
    # a subject that compiles nothing, or by itself, is asked for the scope that fits it
    options = CheckOptions(model=spec["model"], fast_forward="never", compile_scope=scope, **asked)
    torch.manual_seed(SEED)
    prepared = prepare(origin, options, None)
    subject = prepared.subject
    model = subject.model
    if options.subject.method != "full":
        _fill(model)
    model.to(device)
    batches = [(batch, _on(padded(batch, pad), device)) for batch in subject.batches]
    rank = dist.get_rank() if spec["ranks"] > 1 else 0
    with compile_settings(scope, {}):
        step = _step(prepared, spec, scope, backend)
        for number in range(spec["steps"]):
            # each rank has rows of its own where there are several batches
            plain, batch = batches[(number + rank) % len(batches)] if batches else ({}, {})
            if subject.before_step is not None:
                subject.before_step(model, number)
            gate.note_batch(plain)  # padding is no work that was asked for
            step(batch)
            injected.step()


def _step(prepared: Prepared, spec: Mapping[str, Any], scope: str, backend: str | None) -> Any:
    """One training step, optimizer included, as a function of a batch."""
    subject = prepared.subject
    model = subject.model
    if subject.wrap is not None:
        return _own_step(subject.wrap(model) if scope != "none" else model, prepared)
    compile: Any
    if prepared.step is None and subject.training is None and spec["from_config"]:
        from cftdiag.torch_private.dynamo import InvalidBackend, lookup_backend

        try:
            found = lookup_backend(backend or "inductor")
        except InvalidBackend as error:
            raise InputError(f"backend {backend!r} is unknown to this torch") from error
        compile = Compiler(prepared.training, found, dynamic=spec["options"].get("dynamic") or "true")
    else:
        kwargs = {"backend": "inductor", **prepared.compile_kwargs}
        if backend is not None:
            kwargs["backend"] = backend
        if (dynamic := spec["options"].get("dynamic")) is not None:
            kwargs["dynamic"] = DYNAMIC[dynamic]

        def compile(module: nn.Module, name: str) -> None:
            module.compile(**kwargs)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = make_mesh(device, spec["ranks"]) if spec["ranks"] > 1 else None
    recipe = prepared.training
    required = "block" in recipe.regions or recipe.ac != "none" or mesh is not None
    program = apply_recipe(
        model,
        blocks_of(model, prepared.options.subject.blocks, required),
        recipe,
        compile=compile,
        mesh=mesh,
    )
    if prepared.step is not None and subject.step is not None:
        return _own_step(model, prepared)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE)

    def step(batch: Mapping[str, Any]) -> None:
        program.step(batch)
        optimizer.step()
        program.zero_grad()

    return step


def _own_step(model: Any, prepared: Prepared) -> Any:
    """The subject's own training step, whose optimizer is its own affair."""
    from cftdiag.passes.prepare import default_step

    own = prepared.subject.step or default_step
    return lambda batch: own(model, batch)


def _fill(model: nn.Module) -> None:
    """Values for factors that were made without any; what they are does not change what a step takes."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02)
            else:
                parameter.fill_(1.0)


def _on(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
