"""Run by torchrun on two ranks: everything about the trainer that needs ranks, in one start. Writes RESULTS
as JSON.

``torchrun --nproc-per-node 2 tests/integration/trainer_worker.py MODEL DATA OUT``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import trainer
import trainer.weights
from trainer.batch import rank_batches
from trainer.config import TrainConfig
from trainer.data import open_data
from trainer.distributed import process_group
from trainer.export import export
from trainer.methods import method_of
from trainer.optim import make_optimizer
from trainer.osft.frozen import Frozen
from trainer.osft.leak import leak
from trainer.osft.linear import OSFTLinear
from trainer.osft.projection import project_gradients
from trainer.program import Program, build
from trainer.step import Stepper

torch.set_num_threads(1)
MODEL, DATA, OUT = sys.argv[1:]
F64 = torch.float64


def config(**values: Any) -> TrainConfig:
    base = dict(
        model_name_or_path=MODEL, random_init=True, data_path=DATA, train_dtype="float64", osft_upcast_dtype="float64", device="cpu",
        max_tokens_per_gpu=512, batch_size=8, max_steps=3, learning_rate=1e-3, compile_backend="eager", export=False,
    )  # fmt: skip
    return TrainConfig(**{**base, **values})


def metrics(name: str, **values: Any) -> list[dict[str, Any]]:
    torch._dynamo.reset()
    trainer.run_training(config(output_dir=f"{OUT}/{name}", **values))
    return [json.loads(line) for line in (Path(OUT) / name / "metrics.jsonl").read_text().splitlines()]


def prepared(**values: Any) -> tuple[Program, list[dict[str, Any]], int, TrainConfig]:
    """A program and this rank's batches of the first step."""
    c = config(output_dir=f"{OUT}/x", **values)
    program = build(c)
    data = open_data(
        c, program.source.tokenizer, vocabulary=program.source.config.vocab_size, world=dist.get_world_size()
    )
    step, batches = next(rank_batches(data.steps, data.train, rank=dist.get_rank(), pad_id=0, varlen=False))
    return program, batches, step.loss_tokens, c


def projection() -> dict[str, float]:
    """Sharded projection against the dense formula on gathered tensors; 47 of 64 directions make uneven
    shards.
    """
    program, batches, loss_tokens, _ = prepared(osft=True, osft_unfreeze_rank_ratio=0.26)
    layers = [m for m in program.model.modules() if isinstance(m, OSFTLinear)]
    results: dict[str, float] = {"layers": len(layers), "high": layers[0].U_high.shape[1]}
    for cap in (1, 40_000, 2**28):
        for batch in batches:
            (program.model(**batch) / loss_tokens).backward()
        full = [{n: p.full_tensor() for n, p in m.named_parameters()} for m in layers]
        grads = [(m.U_low.grad.full_tensor(), m.V_low.grad.full_tensor()) for m in layers]
        project_gradients(Frozen(layers, cap_bytes=cap))
        worst = moved = 0.0
        for m, f, (du, dv) in zip(layers, full, grads, strict=True):
            expected_u = du - f["U_high"] @ (f["U_high"].T @ du)
            expected_v = dv - (dv @ f["V_high"].T) @ f["V_high"]
            worst = max(worst, (m.U_low.grad.full_tensor() - expected_u).abs().max().item())
            worst = max(worst, (m.V_low.grad.full_tensor() - expected_v).abs().max().item())
            moved = max(moved, (du - expected_u).abs().max().item())
        results[f"worst_{cap}"], results["moved"] = worst, moved
        program.model.zero_grad()
    frozen = Frozen(layers, cap_bytes=40_000)
    results["leak"] = leak(frozen).item()
    layer = layers[0]
    with torch.no_grad():
        u_high, u_low = layer.U_high.full_tensor(), layer.U_low.full_tensor()
        noise = u_high @ torch.ones(u_high.shape[1], u_low.shape[1], dtype=F64)
        noise *= 0.01 * u_low.norm() / noise.norm()
        rows = noise.tensor_split(2)[dist.get_rank()]
        layer.U_low.to_local().add_(rows)
    results["leak_injected"] = leak(frozen).item()
    return results


def decompositions() -> list[int]:
    """Decompositions per rank."""
    count = 0
    original = trainer.weights.decompose

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return original(*args, **kwargs)

    trainer.weights.decompose = counted
    try:
        prepared(osft=True)
    finally:
        trainer.weights.decompose = original
    counts = [0, 0]
    dist.all_gather_object(counts, count)
    return counts


def attention() -> list[str]:
    """What each rank's model attends with, after its weights were loaded."""
    program, *_ = prepared()
    found = ["", ""]
    dist.all_gather_object(found, program.model.config._attn_implementation)
    return found


def exported(name: str, **values: Any) -> dict[str, float]:
    """Loss of the sharded model after a step, and of the exported one on each document by itself."""
    from transformers import AutoModelForCausalLM

    program, batches, loss_tokens, c = prepared(**values)
    stepper = Stepper(program, make_optimizer(program.model, c), c)
    stepper.step(batches, loss_tokens, lr=1e-2)
    program.model.eval()
    total = stepper.evaluate(batches)
    dist.all_reduce(total)
    directory = Path(OUT) / name
    export(program.model, method_of(c), program.source, directory, dtype=F64)
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=F64).eval()
    alone = torch.zeros((), dtype=F64)
    for batch in batches:
        starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
        for a, b in zip(starts, [*starts[1:], batch["input_ids"].shape[1]], strict=True):
            with torch.no_grad():
                logits = plain(batch["input_ids"][:, a:b]).logits[0]
            alone += torch.nn.functional.cross_entropy(
                logits, batch["labels"][0, a:b], reduction="sum", ignore_index=-100
            )
    dist.all_reduce(alone)
    return {
        "sharded": total.item(),
        "exported": alone.item(),
        "names_equal": float(_names(program) == set(plain.state_dict())),
    }


def _names(program: Program) -> set[str]:
    return set(program.model.state_dict())


def tied() -> bool:
    """Tied embeddings stay one parameter through sharding and a step."""
    c = config(output_dir=f"{OUT}/x", model_name_or_path=MODEL + "_tied")
    program = build(c)
    data = open_data(c, program.source.tokenizer, vocabulary=272, world=2)
    step, batches = next(rank_batches(data.steps, data.train, rank=dist.get_rank(), pad_id=0, varlen=False))
    Stepper(program, make_optimizer(program.model, c), c).step(batches, step.loss_tokens, lr=1e-3)
    same = program.model.get_output_embeddings().weight is program.model.get_input_embeddings().weight
    full = {n: p.full_tensor() for n, p in program.model.named_parameters()}
    return same and "lm_head.weight" not in full


with process_group("cpu") as ranks:
    results = {
        "projection": projection(),
        "decompositions": decompositions(),
        "tied": tied(),
        "attention": attention(),
        "export_osft": exported("hf_osft", osft=True, ac="full"),
        "export_full": exported("hf_full", ac="full"),
        "export_lora": exported("hf_lora", lora=True),
        "export_gpt2": exported("hf_gpt2", osft=True, model_name_or_path=MODEL + "_gpt2"),
        "mixed": metrics("mixed", dtype="bfloat16", train_dtype="float32"),
        "bf16": metrics("bf16", train_dtype="bfloat16", osft=True, osft_leak_every=1),
        "full": metrics("full"),
        "accumulated": metrics("accumulated", max_tokens_per_gpu=256),
        "hsdp": metrics("hsdp", replicas=2),
        "osft": metrics("osft", osft=True, max_steps=4),
        "osft_compiled": metrics(
            "osft_compiled",
            osft=True,
            compile_model=True,
            max_steps=10,
            osft_leak_every=10,
            ac="full",
            checkpoint_every=4,
            export=True,
        ),
    }
    resumed = metrics(
        "osft_compiled",
        osft=True,
        max_steps=12,
        osft_leak_every=12,
        resume=f"{OUT}/osft_compiled/checkpoints/step-00000008",
    )
    results["resumed"] = resumed
    if ranks.rank == 0:
        (Path(OUT) / "results.json").write_text(json.dumps(results))
