"""Adapters off, on and merged: the right numbers, one more graph and no more, on one rank and on two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.warm import Warm

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from trainer.config import TrainConfig
from trainer.distributed import process_group
from trainer.methods.lora import adapted_layers, merged_adapters, without_adapters
from trainer.optim import make_optimizer
from trainer.osft.frozen import local
from trainer.program import build
from trainer.step import Stepper

MODEL, OUT, SCOPE, METHOD = sys.argv[1:]
torch.set_num_threads(1)
config = TrainConfig(
    model_name_or_path=MODEL, random_init=True, method=METHOD, lora_rank=4, lora_target_patterns=("q_proj", "up_proj"),
    qlora_block_size=16, compile_scope=SCOPE, compile_backend="eager", train_dtype="float64", device="cpu", loss_chunks=1, output_dir=OUT,
)
with process_group("cpu") as ranks:
    program = build(config)
    step = Stepper(program, make_optimizer(program.model, config), config)
    batches = [
        {"input_ids": torch.arange(n)[None] % 50 + 4, "position_ids": torch.arange(n)[None], "labels": torch.arange(n)[None] % 50 + 5}
        for n in (24, 32, 40)
    ]
    loss = lambda: [step.evaluate([batch]).item() for batch in batches]
    graphs = lambda: sum(program.compiler.graphs.values())
    found = {"start": loss(), "graphs": [graphs()]}
    for batch in batches:
        step.step([batch], 24 * ranks.world, lr=1e-2)
    layers = adapted_layers(program.model)
    held = lambda: [local(p).clone() for layer in layers.values() for p in layer.parameters()]
    found["on"], before = loss(), held()
    found["graphs"].append(graphs())
    with without_adapters(program.model):
        found["off"] = loss()
    found["graphs"].append(graphs())
    if METHOD == "lora":
        with merged_adapters(program.model):
            found["merged"] = loss()
            step_product = any(not torch.equal(a, b) for a, b in zip(held(), before))
            found["in the weights"] = step_product
    else:
        try:
            with merged_adapters(program.model):
                pass
        except ValueError as error:
            found["refused"] = str(error)
    found["restored"] = all(torch.equal(a, b) for a, b in zip(held(), before))
    found["on again"] = loss()
    with without_adapters(program.model):
        found["off again"] = loss()
    found["graphs"].append(graphs())
    if ranks.rank == 0:
        Path(OUT, "found.json").write_text(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("ranks", "scope", "method"),
    [
        pytest.param(1, "block", "lora", marks=pytest.mark.everything("6 s; two ranks stay")),
        (2, "block", "lora"),
        pytest.param(2, "model+loss", "lora", marks=pytest.mark.everything("10 s; the blocks stay")),
        (1, "block", "qlora"),
    ],
)
def test_adapters_go_off_on_and_into_the_weights(
    warm: Warm, tiny: Path, tmp_path: Path, ranks: int, scope: str, method: str
) -> None:
    warm.run(PROGRAM, str(tiny), str(tmp_path), scope, method, ranks=ranks)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["off"] == pytest.approx(found["start"], rel=1e-12) == found["off again"]
    assert all(abs(a - b) > 0.1 for a, b in zip(found["on"], found["off"], strict=True)), "trained"
    assert found["on again"] == found["on"] and found["restored"]
    if method == "lora":
        assert found["merged"] == pytest.approx(found["on"], rel=1e-9) and found["in the weights"]
    else:
        assert "q_proj is kept in 4 bits; adapters are merged by the export alone" in found["refused"]
    evaluated, trained, off, end = found["graphs"]
    assert evaluated == 1 and trained == 2, "without gradients and with"
    assert off == trained + 1 and end == off, (
        "one graph more for a layer without its adapter, and for all that comes"
    )


ANOTHER = """
import json, sys
import torch, cftdiag
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from cftdiag.recipe.compile import compile_settings
from trainer.methods.lora import adapt, adapted_layers

MODEL, OUT = sys.argv[1:]
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL))
adapt(model, rank=4, alpha=8.0, patterns=("q_proj",))
model.get_input_embeddings().register_forward_hook(lambda _m, _a, out: out.requires_grad_(True))
with compile_settings("block", {}):
    for block in model.model.layers:
        block.compile(backend="eager", dynamic=True, fullgraph=True)
    with cftdiag.Monitor(model, run_dir=OUT, quiet=True) as monitor:
        for step in range(1, 7):
            for layer in adapted_layers(model).values():
                if step == 3:
                    layer.scale = 16.0 / 4
                if step == 5:
                    layer.A, layer.B = nn.Parameter(torch.zeros(8, layer.A.shape[1])), nn.Parameter(torch.zeros(layer.B.shape[0], 8))
            model(input_ids=torch.arange(24)[None], labels=torch.arange(24)[None], use_cache=False).loss.backward()
            monitor.step()
"""


@pytest.mark.everything("6 s; the causes of both guards are held in unit/test_diagnose_misses.py")
def test_another_alpha_and_another_rank_are_told_by_the_monitor(
    warm: Warm, tiny: Path, tmp_path: Path
) -> None:
    import cftdiag

    warm.run(ANOTHER, str(tiny), str(tmp_path / "run"))
    report = cftdiag.load_run(tmp_path / "run").to_dict()
    found = {f["cause"]: f for f in report["findings"] if f["kind"] == "recompile"}
    assert set(found) == {"module_float_attr", "parameter_shape"}
    assert "self_attn.q_proj.scale` was 2.0" in found["module_float_attr"]["explanation"]
    assert (
        "self_attn.q_proj.A` was 4 when the code was compiled and is 8 now"
        in found["parameter_shape"]["explanation"]
    )
    assert [found[c]["steps"] for c in ("module_float_attr", "parameter_shape")] == [[3], [5]]
