"""DeepSpeed's engine, ZeRO 2, blocks compiled one by one: ``deepspeed --num_gpus 2 zero.py``."""

import deepspeed
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        return x + self.linear(x).relu()


torch.manual_seed(0)
model = nn.Sequential(Block(), Block(), nn.Linear(32, 8))
for block in model[:2]:
    block.compile()
settings = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "gradient_clipping": 1.0,
}
engine, optimizer, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=settings
)
for step in range(4):
    rows = torch.ones(2, 16 if step < 2 else 24, 32, dtype=torch.bfloat16, device=engine.device)
    loss = engine(rows).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
    print(step, loss.item())
engine.save_checkpoint("checkpoint")
