"""bitsandbytes: 4-bit linear layers with an adapter beside them, compiled blocks, an 8-bit optimizer, on CUDA."""

import bitsandbytes
import torch
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = bitsandbytes.nn.Linear4bit(
            64, 64, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4"
        )
        self.base.weight.requires_grad_(False)
        self.down, self.up = nn.Linear(64, 8, bias=False), nn.Linear(8, 64, bias=False)

    def forward(self, x):
        return x + (self.base(x) + self.up(self.down(x))).relu()


model = nn.Sequential(Block(), Block()).to(torch.bfloat16).cuda()
for block in model:
    block.compile()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = bitsandbytes.optim.AdamW8bit(trained, lr=1e-3)
for step in range(4):
    loss = (
        model(torch.ones(2, 16 if step < 2 else 24, 64, dtype=torch.bfloat16, device="cuda"))
        .float()
        .pow(2)
        .mean()
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
