"""A hub model by its name, blocks compiled one by one, on CUDA in bfloat16: no weights, no hub, no GPU needed."""

import os

import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype=torch.bfloat16, device_map="cuda")
assert not model.training and model.dtype == torch.bfloat16
model.train()
for layer in model.model.layers:
    layer.compile(dynamic=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for length in (64, 96, 80):
    ids = torch.randint(0, 1000, (2, length), device="cuda")
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model.save_pretrained("saved")
assert os.path.getsize("saved/model.safetensors") > 1 << 30
again = AutoModelForCausalLM.from_pretrained("saved")
assert again.num_parameters() == model.num_parameters()
