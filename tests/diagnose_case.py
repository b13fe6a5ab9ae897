"""Run one case file on the Recorder and print its findings as JSON: ``python -m tests.diagnose_case FILE``.

Two passes in a child process each, as the check does it: collecting (as the case compiles itself) and
fullgraph. What the check finds by behaviour (late hooks, numerics, saved-tensor hooks) is not probed here,
but for the exception that ends a pass.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cftdiag.diagnose import Block, Context, Probes, diagnose
from cftdiag.events import Event


def load(path: str | Path) -> Any:
    """The case as a module."""
    spec = importlib.util.spec_from_file_location("case", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["case"] = module
    spec.loader.exec_module(module)
    return module


def findings_of(path: str | Path, *, fullgraph: bool = True) -> list[dict[str, Any]]:
    """Findings of a case, as dicts; without ``fullgraph`` only the collecting pass is run."""
    collected = in_child(lambda: run_pass(path, fullgraph=False))
    refused: dict[str, Any] = {"events": [], "fullgraph": {}}
    if fullgraph and not collected["wrap"]:
        refused = in_child(lambda: run_pass(path, fullgraph=True))
    return judge(collected, refused)


def judge(collected: Mapping[str, Any], refused: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Findings of two recorded passes."""
    context = Context(
        blocks=tuple(Block(**b) for b in collected["blocks"]),
        lengths=collected["lengths"],
        batch_sizes=collected["batch_sizes"],
        graphs=collected["graphs"],
        ran=collected["ran"],
        fullgraph=refused["fullgraph"],
        fullgraph_breaks=tuple(e for e in map(Event.from_dict, refused["events"]) if e.kind == "graph_break"),
        wrap=collected["wrap"],
        limit=collected["limit"],
        compile_kwargs=collected["compile_kwargs"],
        probes=Probes(calls=collected["calls"]),
    )
    return [f.to_dict() for f in diagnose([Event.from_dict(e) for e in collected["events"]], context)]


def in_child(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of ``run`` in a forked child, so that each pass starts with an empty Dynamo."""
    imported()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as out:
                json.dump(run(), out, default=str)
            status = 0
        except BaseException:  # noqa: BLE001 - the child ends here whatever happened; the parent sees its status
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as inp:
        text = inp.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError("the pass failed")
    found: dict[str, Any] = json.loads(text)
    return found


@functools.cache
def imported() -> None:
    """Import what a compile imports, once for all children: a tiny function is compiled and Dynamo forgets
    it.
    """
    import torch
    import torch._dynamo

    torch.set_num_threads(1)
    torch.compile(lambda x: x.sin().sum(), backend="aot_eager")(torch.ones(2, requires_grad=True)).backward()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def run_pass(path: str | Path, *, fullgraph: bool) -> dict[str, Any]:
    """One pass over a case, as plain data."""
    import torch
    import torch._dynamo

    from cftdiag.capture import Recorder, counting, track

    warnings.filterwarnings("ignore")
    torch._logging.set_logs(all=50)
    case = load(path)
    torch.manual_seed(0)
    model, batches = case.build()
    recorder = Recorder()
    named = [(f"layers.{i}", block) for i, block in enumerate(model.layers)]
    wrap = hasattr(case, "wrap")
    kwargs = dict(getattr(case, "COMPILE", {}))
    failed: dict[str, bool | None] = {}
    trained: set[str] = set()
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in trainable.items():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: trained.add(name))
    with recorder:
        run = model
        if wrap:
            run = case.wrap(model) or model
        else:
            backend = counting("aot_eager", recorder)
            for name, block in named:
                block.compile(**(kwargs | {"backend": backend, "fullgraph": fullgraph}))
                track(block, name, recorder)
                if fullgraph:
                    isolate(block, name, failed)
        recorder.watch(model)
        step = getattr(case, "step", default_step)
        try:
            for i, batch in enumerate(batches):
                recorder.step = i + 1
                if hasattr(case, "before_step"):
                    case.before_step(model, i)
                step(run, dict(batch))
        except Exception as error:  # noqa: BLE001 - whatever the case raises is what it shows
            if not fullgraph:
                recorder.error(error)
    shapes = [first_shape(b) for b in batches]
    return {
        "events": [e.to_dict() for e in recorder.events],
        "blocks": [
            {"fqn": n, "cls": type(b).__name__, "kind": type(b).__name__, "index": i}
            for i, (n, b) in enumerate(named)
        ],
        "lengths": [s[1] for s in shapes],
        "batch_sizes": [s[0] for s in shapes],
        "graphs": None if wrap else {n: len(recorder.graphs.get(n, ())) for n, _ in named},
        "ran": {n: sorted(ids) for n, ids in recorder.graphs.items()},
        "calls": {},
        "fullgraph": {n: failed.get(n, True) for n, _ in named},
        "wrap": wrap,
        "limit": torch._dynamo.config.recompile_limit,
        "compile_kwargs": kwargs,
        "trained": sorted(trained),
        "trainable": sorted(trainable),
    }


def isolate(block: Any, name: str, failed: dict[str, bool | None]) -> None:
    """Keep a block's refusal to itself and run it eagerly."""
    compiled = block._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        if name not in failed:
            try:
                return compiled(*args, **kwargs)
            except Exception:  # noqa: BLE001 - any refusal of fullgraph
                failed[name] = False
        return block._call_impl(*args, **kwargs)

    block._compiled_call_impl = call


def default_step(model: Any, batch: Mapping[str, Any]) -> Any:
    """Forward, mean square, backward."""
    loss = model(**batch).float().pow(2).mean()
    if loss.requires_grad:
        loss.backward()
        model.zero_grad(set_to_none=True)
    return loss.detach()


def first_shape(batch: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(rows, length) of the first tensor of two dimensions or more."""
    for value in batch.values():
        if hasattr(value, "dim") and value.dim() >= 2:
            return int(value.shape[0]), int(value.shape[1])
    return None, None


if __name__ == "__main__":
    for found in findings_of(sys.argv[1]):
        print(json.dumps(found))
