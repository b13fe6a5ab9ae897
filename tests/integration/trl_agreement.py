"""Losses and gradients of our objectives and of TRL's trainers on the same rows and weights, float32; prints JSON.

``{objective: [our loss, TRL's loss, largest difference of a gradient, largest gradient]}``.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
import tempfile
import types
import warnings
from array import array
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

from cftdiag.recipe import TrainRecipe
from cftdiag.recipe.loss import install_loss
from cftdiag.recipe.packing import Row, Sample, Step
from trainer import demo
from trainer.config import TrainConfig
from trainer.objectives import Objective, objective_of
from trainer.objectives.grpo import GRPO, Answer, Rollout, advantages_of
from trainer.rows import Reader, Tokens

warnings.simplefilter("ignore")
torch.set_num_threads(1)
TOKENIZER = demo.tokenizer()
PAIRS = [
    {"prompt": "What is 2 plus 2?", "chosen": " It is 4.", "rejected": " It is 5, I believe."},
    {"prompt": "Say yes.", "chosen": " yes, yes, yes", "rejected": " no"},
    {"prompt": "Count.", "chosen": " 1, 2, 3, 4", "rejected": " 1, 3, 2, 4"},
]


class Samples:
    """Tokens of some rows."""

    digest = "these"

    def __init__(self, tokens: list[Tokens]) -> None:
        self._tokens = tokens
        self.samples: list[Sample] = [t.sample(i) for i, t in enumerate(tokens, 1)]

    def __getitem__(self, index: int) -> Tokens:
        return self._tokens[index]


def model(seed: int) -> Any:
    torch.manual_seed(seed)
    config = demo.config(
        num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1,
        initializer_range=0.2,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


def with_loss(plain: nn.Module, objective: Objective) -> nn.Module:
    """A copy that returns the objective's loss of a row, in two chunks."""
    made = copy.deepcopy(plain)
    install_loss(made, TrainRecipe(scope="none", loss_chunks=2, loss=objective.loss))
    return made


def compared(ours: Tensor, own: nn.Module, theirs: Tensor, other: nn.Module) -> list[float]:
    ours.backward()
    theirs.backward()
    gradients = {name: p.grad for name, p in other.named_parameters() if p.grad is not None}
    apart = [
        (p.grad - gradients[name]).abs().max() for name, p in own.named_parameters() if p.grad is not None
    ]
    assert len(apart) == len(gradients)
    return [
        ours.item(),
        theirs.item(),
        max(apart).item(),
        max(g.abs().max() for g in gradients.values()).item(),
    ]


def pairs() -> Samples:
    reader = Reader(tokenizer=TOKENIZER, vocabulary=272, objective="dpo")
    return Samples([reader.row(row) for row in PAIRS])


def dpo(kind: str, folder: str) -> list[float]:
    plain, reference = model(0), model(1)
    arguments = DPOConfig(
        output_dir=folder, per_device_train_batch_size=len(PAIRS), report_to=[], use_cpu=True, bf16=False, loss_type=kind,
        activation_checkpointing=False, max_length=256, beta=0.3,
    )  # fmt: skip
    trl = DPOTrainer(
        model=plain,
        ref_model=reference,
        args=arguments,
        train_dataset=Dataset.from_list(PAIRS),
        processing_class=TOKENIZER,
    )
    objective = objective_of(
        TrainConfig(objective="dpo", dpo_loss=kind, dpo_beta=0.3, batch_size=len(PAIRS) + 2)
    )
    samples = pairs()
    row = Row(samples=(0, 1, 2), length=200)
    batch = objective.collate(row, samples, pad_id=0, varlen=False)
    with torch.no_grad():
        values = with_loss(reference, objective)(**batch)[2]
    objective.note_ahead(samples, [row], [batch], [values])
    own = with_loss(plain, objective)
    total, _ = own(**objective.collate(row, samples, pad_id=0, varlen=False))
    # In the order of the file: a loader would shuffle it.
    rows = trl.data_collator([trl.train_dataset[i] for i in range(len(PAIRS))])
    theirs = trl._compute_loss(trl.model, dict(rows), False)
    return compared(total / len(PAIRS), own, theirs, plain)


def orpo() -> list[float]:
    """The part of the odds ratio. TRL's likelihood counts the prompt too, ours the answer alone."""
    from trl.experimental.orpo import ORPOTrainer

    plain = model(0)
    objective = objective_of(TrainConfig(objective="dpo", dpo_loss="orpo", dpo_beta=0.3, batch_size=3))
    samples, row = pairs(), Row(samples=(0, 1, 2), length=200)
    batch = objective.collate(row, samples, pad_id=0, varlen=False)
    own, other = with_loss(plain, objective), copy.deepcopy(plain)
    total, _ = own(**batch)
    means = []
    for index in range(3):
        for ids, labels in samples[index].documents:
            logits = other(input_ids=torch.tensor([list(ids)])).logits[0, :-1]
            losses = nn.functional.cross_entropy(
                logits, torch.tensor(list(labels))[1:], reduction="sum", ignore_index=-100
            )
            means.append(-losses / sum(label != -100 for label in labels[1:]))
    chosen, rejected = torch.stack(means[::2]), torch.stack(means[1::2])
    stand_in = types.SimpleNamespace(beta=0.3, accelerator=types.SimpleNamespace(device="cpu"))
    ratios = ORPOTrainer.odds_ratio_loss(stand_in, chosen, rejected)[0]
    return compared(total / 3, own, (-chosen - ratios).mean(), other)


LIMIT = 12
PROMPTS = [[5, 6, 7, 8], [9, 10]]
#: Two answers to each of two prompts.
WRITTEN = [[20, 21, 22, 3], [30, 31, 3], [40, 41, 42, 43, 44, 3], [50, 3]]
REWARDS = [1.0, 0.25, 0.0, 0.5]


def of_trl(folder: str, **values: Any) -> tuple[Any, dict[str, Tensor]]:
    """TRL's trainer of a model with weights, and what it makes of the answers."""
    model(0).save_pretrained(f"{folder}/model")  # TRL reads its reference from where the model is from
    arguments = GRPOConfig(
        output_dir=folder, per_device_train_batch_size=4, num_generations=2, report_to=[], use_cpu=True, bf16=False,
        epsilon=0.2, temperature=0.7, activation_checkpointing=False, max_completion_length=LIMIT, steps_per_generation=1, **values,
    )  # fmt: skip
    trl = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(f"{folder}/model"),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "a"}, {"prompt": "b"}]),
        processing_class=TOKENIZER,
    )
    trl.current_gradient_accumulation_steps = 1

    def padded(rows: list[list[int]], size: int, *, left: bool) -> tuple[Tensor, Tensor]:
        spare = [size - len(r) for r in rows]
        ids = [[0] * n + r if left else r + [0] * n for n, r in zip(spare, rows, strict=True)]
        mask = [
            [0] * n + [1] * len(r) if left else [1] * len(r) + [0] * n
            for n, r in zip(spare, rows, strict=True)
        ]
        return torch.tensor(ids), torch.tensor(mask)

    prompt_ids, prompt_mask = padded([PROMPTS[i // 2] for i in range(4)], 4, left=True)
    completion_ids, completion_mask = padded(WRITTEN, max(map(len, WRITTEN)), left=False)
    return trl, {
        "prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "completion_ids": completion_ids, "completion_mask": completion_mask,
        "advantages": torch.tensor(advantages_of(REWARDS, 2)), "num_items_in_batch": completion_mask.sum(),
    }  # fmt: skip


def grpo(kind: str, beta: float, folder: str) -> list[float]:
    """Policies that sampled and that began are other ones than the trained one."""
    trl, inputs = of_trl(folder, loss_type=kind, beta=beta)
    plain = trl.model
    generator = torch.Generator().manual_seed(2)
    width = inputs["completion_ids"].shape[1]
    old = -5.5 + torch.randn(4, width, generator=generator) * 0.3
    reference = -5.5 + torch.randn(4, width, generator=generator) * 0.3
    theirs = trl._compute_loss(
        plain, {**inputs, "old_per_token_logps": old, "ref_per_token_logps": reference}
    )

    config = TrainConfig(
        objective="grpo",
        grpo_loss=kind,
        grpo_beta=beta,
        grpo_temperature=0.7,
        grpo_completion_tokens=LIMIT,
        batch_size=2,
    )
    objective = objective_of(config)
    advantages = advantages_of(REWARDS, 2)
    rollout = Rollout(
        [
            Answer(ids=array("q", PROMPTS[i // 2] + new), count=len(new), advantage=advantages[i], line=1)
            for i, new in enumerate(WRITTEN)
        ]
    )
    batch = objective.collate(Row(samples=(0, 1, 2, 3), length=40), rollout, pad_id=0, varlen=False)
    place = 0
    for i, new in enumerate(WRITTEN):
        first = place + len(PROMPTS[i // 2]) - 1
        batch["old"][0, first : first + len(new)] = old[i, : len(new)]
        batch["reference"][0, first : first + len(new)] = reference[i, : len(new)]
        place += len(PROMPTS[i // 2]) + len(new)
    own = with_loss(plain, objective)
    total, (kl, clipped) = own(**batch)
    assert clipped > 0 and (kl > 0) == (beta > 0)
    divisor = sum(map(len, WRITTEN)) if kind == "dapo" else len(WRITTEN)
    return compared(total / divisor, own, theirs, plain)


def iterations(folder: str) -> list[float]:
    """The second update on the answers of a rollout: the policy that sampled is the one before the first."""
    trl, inputs = of_trl(folder, loss_type="grpo", beta=0.04, num_iterations=2)
    theirs = trl.model
    config = TrainConfig(
        objective="grpo", reward="trainer.demo:reward", grpo_generations=2, grpo_iterations=2, grpo_completion_tokens=LIMIT,
        grpo_temperature=0.7, grpo_loss="grpo", grpo_beta=0.04, batch_size=2, max_tokens_per_gpu=64,
    )  # fmt: skip
    objective = objective_of(config)
    assert isinstance(objective, GRPO)
    theirs.train()  # there is no dropout; TRL's figures are those of training
    own = with_loss(theirs, objective)
    source = types.SimpleNamespace(tokenizer=TOKENIZER)
    objective.begin(types.SimpleNamespace(model=own, device=torch.device("cpu"), source=source))
    # What is written and what it is worth are given; all else of a rollout is the product's.
    replaced: Any = objective
    replaced._generate, replaced._rewards = lambda *_: WRITTEN, lambda *_: REWARDS
    samples: Any = Samples([Tokens(input_ids=array("q", p), labels=array("q", p)) for p in PROMPTS])
    samples.record = lambda _index: {"prompt": ""}
    step = Step(epoch=0, rows=((Row(samples=(0, 1), length=8),),), samples=2, tokens=6, loss_tokens=4)
    made = objective.batches(
        [step, dataclasses.replace(step, update=1)], samples, rank=0, pad_id=0, varlen=False
    )

    def loss() -> Tensor:
        """Of the next update."""
        packed, batches = next(made)
        return sum((own(**batch)[0] for batch in batches), torch.zeros(())) / objective.divisor(packed)

    width = inputs["completion_ids"].shape[1]
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    with torch.no_grad():  # as TRL does where it samples
        old, *_ = trl._get_per_token_logps_and_entropies(theirs, ids, mask, width)
    inputs |= {"old_per_token_logps": old, "ref_per_token_logps": old}
    for policy, first in ((own, loss()), (theirs, trl._compute_loss(theirs, dict(inputs)))):
        first.backward()
        with torch.no_grad():
            for parameter in policy.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    found = compared(loss(), own, trl._compute_loss(theirs, dict(inputs)), theirs)
    ratio = trl._metrics["train"]["clip_ratio/region_mean"]
    assert ratio[0] == 0 and ratio[1] > 0, "the second update goes beyond the clip"
    return found


def main(folder: str) -> None:
    found: dict[str, Callable[[], list[float]]] = {
        "sigmoid": lambda: dpo("sigmoid", folder),
        "ipo": lambda: dpo("ipo", folder),
        "orpo": orpo,
        "dapo": lambda: grpo("dapo", 0.0, folder),
        "grpo": lambda: grpo("grpo", 0.04, folder),
        "dr_grpo": lambda: grpo("dr_grpo", 0.0, folder),
        "iterations": lambda: iterations(folder),
    }
    print(json.dumps({name: make() for name, make in found.items()}))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
    sys.stdout.flush()
