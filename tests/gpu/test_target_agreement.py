"""The prediction for a GPU against that GPU: generated kernels, their registers, recompiles and guards. Skipped without one.

``make gpu`` runs this with ``-s``; every comparison prints its agreement.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from cftdiag.target import DEVICES, kernels
from cftdiag.target.regimes import body
from tests.truth.compare import differences, parse, summary

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {"lengths": (520, 777), "batch_size": 2}

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def target() -> str:
    """The table's name of the device here."""
    name = torch.cuda.get_device_name(0).lower()
    found = next((key for key in DEVICES if key in name), None)
    if found is None:
        pytest.skip(f"no target in the table for {name}")
    return found


@contextlib.contextmanager
def hidden():
    """The offline side must not see the device: it would answer in the table's place."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES") if before is None else os.environ.update(CUDA_VISIBLE_DEVICES=before)


@pytest.fixture(scope="module")
def both():
    with hidden():
        offline = kernels("Qwen3-4B", target=target(), with_source=True, **SHAPES)
    return offline, kernels("Qwen3-4B", target="cuda", with_source=True, **SHAPES)


def graphs(report):
    return [(block["kind"], graph) for block in report["blocks"] for graph in block["graphs"]]


def test_the_same_kernels_are_generated(both):
    offline, real = both
    assert [(kind, g["direction"]) for kind, g in graphs(offline)] == [(kind, g["direction"]) for kind, g in graphs(real)]
    for (kind, a), (_, b) in zip(graphs(offline), graphs(real), strict=True):
        same = sum(body(x["source"]) == body(y["source"]) for x, y in zip(a["kernels"], b["kernels"], strict=False))
        print(f"{kind} {a['direction']} {a['sizes']}: {same} of {len(b['kernels'])} kernels alike, {len(a['kernels'])} predicted")
        assert [k["name"] for k in a["kernels"]] == [k["name"] for k in b["kernels"]]
        assert same == len(b["kernels"])
        assert [e["op"] for e in a["externs"]] == [e["op"] for e in b["externs"]]


def test_registers_and_spills_agree_and_a_winner_is_marked(both):
    offline, real = both
    for (kind, a), (_, b) in zip(graphs(offline), graphs(real), strict=True):
        for x, y in zip(a["kernels"], b["kernels"], strict=True):
            left, right = ([(c["settings"], c["usage"]) for c in k["compiled"]["configurations"]] for k in (x, y))
            print(f"{kind} {y['name']}: registers {[u['registers'] for _, u in left]} predicted, {[u['registers'] for _, u in right]} real")
            assert left == right
            assert sum(bool(c.get("winner")) for c in y["compiled"]["configurations"]) == 1


PROGRAM = """
    import sys, torch
    from cftdiag.check.fastforward import SkipMode
    from cftdiag.check import catalogue
    from cftdiag.check.program import build_model, find_blocks, load_config, make_batches, wrap_blocks
    name, real = sys.argv[1], sys.argv[2] == "real"
    import contextlib
    config = load_config({"model_type": "qwen3", **catalogue.find("Qwen3-4B").config})
    model = build_model(config, layers=2, weights=real)
    if real:
        model.cuda()
        backend, skip = "inductor", contextlib.nullcontext
    else:
        from cftdiag import target
        backend, skip = target.backend(name), SkipMode
    with skip():
        program = wrap_blocks(model, find_blocks(model), compile=lambda m, n: m.compile(backend=backend, dynamic=True, fullgraph=True))
        for i, batch in enumerate(make_batches(model.config, lengths=(520, 640, 777, 1024), batch_size=2, model=model)):
            print("STEP", i, batch.length, file=sys.stderr, flush=True)
            kwargs = {k: v.cuda() if real and isinstance(v, torch.Tensor) else v for k, v in batch.kwargs.items()}
            program.step(kwargs)
            program.zero_grad()
"""


def log(mode: str):
    environment = dict(os.environ, TORCH_LOGS="recompiles,guards")
    if mode != "real":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), target(), mode], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # a device's name stands in every tensor guard, and the blocks were traced on the CPU
    return parse(done.stderr.replace("device=0", "device=None").replace("cuda:0", "cpu"))


def test_recompiles_and_shape_guards_agree():
    real, predicted = log("real"), log("predicted")
    print(f"real: {summary(real)}\npredicted: {summary(predicted)}")
    found = [line for line in differences(real, predicted) if "dispatch" not in line.lower()]
    print("\n".join(found[:20]) or "no difference")
    assert real.recompiles == predicted.recompiles
    shape = [line for line in found if "size()" in line or "% " in line]
    assert not shape, shape
