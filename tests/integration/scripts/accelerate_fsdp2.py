"""accelerate's own FSDP2: layers compiled one by one, accumulation, clipping, an evaluation and a checkpoint.

``accelerate launch --config_file accelerate_fsdp2.yaml accelerate_fsdp2.py``; ``--cpu`` takes accelerate's way on
gloo, which it keeps for devices.
"""

import argparse
import os

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from tiny_text import config, sentences, tokenizer
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--cpu", action="store_true")
arguments = parser.parse_args()

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=arguments.cpu)
if arguments.cpu:
    for state in (PartialState(), accelerator.state):
        state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Qwen3DecoderLayer"],
    )
torch.manual_seed(0)
words = tokenizer()
model = AutoModelForCausalLM.from_config(config())
for layer in model.model.layers:
    layer.compile(backend=os.environ.get("BACKEND", "inductor"))


def collate(texts):
    batch = words(texts, return_tensors="pt", padding=True)
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


train = DataLoader(sentences(44), batch_size=4, shuffle=True, collate_fn=collate)
held_out = DataLoader(sentences(12, seed=1), batch_size=4, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, train, held_out = accelerator.prepare(model, optimizer, train, held_out)
assert isinstance(model, FSDPModule)
if arguments.cpu:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # gloo has neither the averaging nor the scaling reduction
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
for epoch in range(2):
    model.train()
    for batch in train:
        with accelerator.accumulate(model):
            loss = model(**batch, use_cache=False).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    losses = []
    for batch in held_out:
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics(model(**batch, use_cache=False).loss.repeat(4)))
    accelerator.print("epoch", epoch, "loss", torch.cat(losses).mean().item())
accelerator.wait_for_everyone()
accelerator.save_state("state")
accelerator.end_training()
