"""peft LoRA under accelerate: layers compiled one by one, accumulation over padded batches, an evaluation, a last partial batch."""

import argparse
import os

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from tiny_text import config, sentences, tokenizer
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--cpu", action="store_true")
arguments = parser.parse_args()

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=arguments.cpu)
torch.manual_seed(0)
words = tokenizer()
model = get_peft_model(
    AutoModelForCausalLM.from_config(config()),
    LoraConfig(r=4, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
)
for layer in model.get_base_model().model.layers:
    layer.compile(backend=os.environ.get("BACKEND", "inductor"))


def collate(texts):
    batch = words(texts, return_tensors="pt", padding=True)
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


train = DataLoader(sentences(22), batch_size=4, shuffle=True, collate_fn=collate)
held_out = DataLoader(sentences(6, seed=1), batch_size=4, collate_fn=collate)
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
model, optimizer, train, held_out, schedule = accelerator.prepare(model, optimizer, train, held_out, schedule)
for epoch in range(2):
    model.train()
    for batch in train:
        with accelerator.accumulate(model):
            loss = model(**batch, use_cache=False).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    losses = []
    for batch in held_out:
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics(model(**batch, use_cache=False).loss.repeat(4)))
    accelerator.print("epoch", epoch, "loss", torch.cat(losses).mean().item())
accelerator.wait_for_everyone()
accelerator.unwrap_model(model).save_pretrained(
    "adapter", is_main_process=accelerator.is_main_process, save_function=accelerator.save
)
accelerator.end_training()
