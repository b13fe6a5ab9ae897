"""What is counted without weights against a real step: torch's own FLOP counter, and tensors that autograd keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cftdiag.options import CheckOptions
from cftdiag.passes.launch import Pass
from cftdiag.passes.messages import Counted, PayoffTask
from cftdiag.payoff.estimate import formula, memory
from cftdiag.subject import resolve
from cftdiag.target.step_work import Measured
from tests.warm import Warm

SHAPE = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "pad_token_id": 0,
}  # fmt: skip
#: Nothing of ours: the same model, the loss on eight chunks as the recipe has it, and torch's own counters.
REAL = """
import json, sys
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM
shape, ac, compiled = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape), attn_implementation="eager")
own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
blocks, inside, kept, seen, alive = model.model.layers, [], [0] * 3, set(), []
for i, block in enumerate(blocks):
    block.register_forward_pre_hook(lambda m, a, i=i: inside.append(i))
    block.register_forward_hook(lambda m, a, o: (inside.pop(), None)[1], always_call=True)
    if compiled != "eager":
        block.compile(backend=compiled, dynamic=True)
def pack(t):
    storage = t.untyped_storage()
    if inside and storage._cdata not in own and storage._cdata not in seen:
        seen.add(storage._cdata); alive.append(t); kept[inside[-1]] += storage.nbytes()
    return t
ids = torch.arange(96)[None] % 256
def step():
    hidden = model.model(ids, use_cache=False).last_hidden_state
    total = 0
    for part, labels in zip(hidden.chunk(8, 1), ids.chunk(8, 1)):
        total = total + checkpoint(lambda h, l: F.cross_entropy(model.lm_head(h).flatten(0, 1).float(), l.flatten(), reduction="sum"),
                                   part, labels, use_reentrant=False)
    total.backward()
step()
model.zero_grad()
with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
    step()
flops = FlopCounterMode(display=False)
if compiled == "eager":
    with flops:
        step()
print("TRUTH" + json.dumps({"kept": kept, "flops": flops.get_total_flops() if compiled == "eager" else None}))
"""


#: What the recipe's forward leaves allocated when it returns, by torch's own record of every allocation and release.
ALLOCATED = """
import gc, json, os, sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from cftdiag.recipe import TrainRecipe, apply_recipe, build_model, find_blocks
from cftdiag.recipe.fsdp import make_mesh
shape, modes, world = json.loads(sys.argv[1]), sys.argv[2].split(","), int(os.environ.get("WORLD_SIZE", 1))
mesh = None
if world > 1:
    dist.init_process_group("gloo")
    mesh = make_mesh("cpu", world)
ids = torch.arange(96)[None] % 200
batch = {"input_ids": ids, "labels": ids.roll(-1), "position_ids": torch.arange(96)[None]}
kept, root = {}, 0
for ac in modes:
    model = build_model(shape, attn="eager", dtype="float32", weights=True)
    blocks = find_blocks(model)
    inside = {id(p) for _, block in blocks for p in block.parameters()}
    root = sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in inside)
    program = apply_recipe(model, blocks, TrainRecipe(ac=ac, dtype="float32"), mesh=mesh)
    program.step(batch)
    program.zero_grad()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss = program.forward_loss(batch)
    events = profiler.profiler.kineto_results.events()
    kept[ac] = sum(event.nbytes() for event in events if event.name() == "[memory]")
    loss.backward()
    del loss, model, blocks, program, profiler, events
    gc.collect()
if os.environ.get("RANK", "0") == "0":
    print("TRUTH" + json.dumps({"kept": kept, "root": root}))
if world > 1:
    dist.destroy_process_group()
"""
AC = ("none", "full", "selective")
KINDS = ("qwen3", "llama", "granite", "phi3", "olmo2", "gemma2")
_OTHERS = pytest.mark.everything("five more architectures; `make test` holds one under every checkpointing")


def counted(
    warm: Warm, folder: Path, *scopes: str, kind: str = "qwen3", ac: str = "none", world: int = 1
) -> Measured:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, **SHAPE}))
    asked = CheckOptions(
        model=str(path), attn="eager", dtype="float32", lengths=(96,), ac=ac, world_size=world
    )
    task = PayoffTask(origin=resolve(str(path)), options=asked, target="h200", scopes=scopes)
    launcher = warm.lend("cftdiag.payoff.job:work")
    for message in Pass(launcher, task, None):
        if isinstance(message, Counted):
            return message.measured
    raise AssertionError("the step was not counted")


def truth(warm: Warm, compiled: str = "eager") -> dict[str, list[int] | int]:
    done = warm.run(REAL, json.dumps({"model_type": "qwen3", **SHAPE}), "none", compiled)
    return json.loads(done.stdout.partition("TRUTH")[2])


def test_flops_and_what_eager_keeps_are_those_of_a_real_step(warm: Warm, tmp_path: Path) -> None:
    found, real = counted(warm, tmp_path, "none"), truth(warm)
    [block] = found.blocks
    whole = block.eager.times(3) + found.body.eager + found.rest.eager
    assert found.loss is not None
    assert (whole + found.loss.eager).flops == real["flops"]
    first, second, third = real["kept"]
    assert first > second == third, "what all blocks are given is kept once, by the first"
    at = next(p for p in block.saved_eager if (p.batch_size, p.length) == (1, 96))
    assert at.bytes == pytest.approx(second, rel=0.02)
    squares = formula(block.saved_eager)
    assert squares is not None and squares.per_square > 0, "eager attention keeps its scores"


@pytest.mark.parametrize("kind", ["qwen3", *(pytest.param(kind, marks=_OTHERS) for kind in KINDS[1:])])
def test_what_a_step_keeps_is_what_it_leaves_allocated(warm: Warm, tmp_path: Path, kind: str) -> None:
    done = warm.run(ALLOCATED, json.dumps({"model_type": kind, **SHAPE}), ",".join(AC))
    kept = json.loads(done.stdout.partition("TRUTH")[2])["kept"]
    for ac in AC:
        found = memory(counted(warm, tmp_path, "none", kind=kind, ac=ac), batch_size=1, length=96)
        assert found is not None and found.saved == pytest.approx(kept[ac], rel=0.02), ac
    assert kept["full"] < kept["selective"] < kept["none"]


@pytest.mark.everything("two ranks of gloo; one rank stays in `make test`")
@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_on_each_of_two_ranks(warm: Warm, tmp_path: Path, kind: str) -> None:
    done = warm.run(ALLOCATED, json.dumps({"model_type": kind, **SHAPE}), ",".join(AC), ranks=2)
    real = json.loads(done.stdout.partition("TRUTH")[2].splitlines()[0])
    for ac in AC:
        found = memory(
            counted(warm, tmp_path, "none", kind=kind, ac=ac, world=2), batch_size=1, length=96, world_size=2
        )
        # what is outside of the blocks stays gathered until its backward
        assert found is not None and found.saved + real["root"] == pytest.approx(
            real["kept"][ac], rel=0.02
        ), ac


@pytest.mark.everything("a minute of g++; what eager keeps is held in `make test`")
def test_what_a_compiled_block_keeps_is_what_inductor_keeps(warm: Warm, tmp_path: Path) -> None:
    [block] = counted(warm, tmp_path, "none", "block").blocks
    kept = truth(warm, "inductor")["kept"]
    assert isinstance(kept, list)
    [at] = block.saved_compiled
    assert at.bytes == pytest.approx(kept[1], rel=0.02)
    assert at.bytes < block.saved_eager[0].bytes
