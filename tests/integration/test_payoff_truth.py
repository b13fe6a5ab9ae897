"""What is counted without weights against a real step: torch's own FLOP counter, and tensors that autograd keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cftdiag.options import CheckOptions
from cftdiag.passes.launch import Pass
from cftdiag.passes.messages import Counted, PayoffTask
from cftdiag.payoff.estimate import formula
from cftdiag.subject import resolve
from cftdiag.target.step_work import Measured
from tests.warm import Warm

SHAPE = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
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


def counted(warm: Warm, folder: Path, *scopes: str) -> Measured:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "qwen3", **SHAPE}))
    asked = CheckOptions(model=str(path), attn="eager", dtype="float32", lengths=(96,))
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


@pytest.mark.everything("a minute of g++; what eager keeps is held in `make test`")
def test_what_a_compiled_block_keeps_is_what_inductor_keeps(warm: Warm, tmp_path: Path) -> None:
    [block] = counted(warm, tmp_path, "none", "block").blocks
    kept = truth(warm, "inductor")["kept"]
    assert isinstance(kept, list)
    [at] = block.saved_compiled
    assert at.bytes == pytest.approx(kept[1], rel=0.02)
    assert at.bytes < block.saved_eager[0].bytes
