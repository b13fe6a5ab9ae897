"""Blocks that name CUDA in their own code, as compiled code, between two graphs, and once Dynamo has given up on them."""

import os

import torch
from torch import nn

device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


@torch.compiler.disable
def positions(x):
    assert x.is_cuda and x.device == device
    return torch.arange(x.shape[1], device="cuda").to(x.device)[None, :, None]


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.index = index

    def forward(self, x):
        if not x.is_cuda or x.device.type != "cuda":
            print("a break that the real run does not have")
        ones = (
            torch.ones(16, device=device)
            + torch.zeros(16).cuda(non_blocking=True)
            + torch.tensor(1.0, device="cuda:0")
        )
        y = (
            x.new_zeros(16, device="cuda")
            + torch.zeros_like(x, device="cuda")
            + torch.zeros(16, device=x.device)
        )
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
            y = y + self.linear(x).to("cuda")
        return x + y.float() * ones * self.index


class Breaking(Block):
    def forward(self, x):
        return super().forward(x) * positions(x)


torch._dynamo.config.recompile_limit = 2
model = nn.Sequential(*(Block(i) for i in range(4)), Breaking(1)).cuda()
for block in model:
    block.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    loss = model(torch.ones(4, 18, 16, device=device)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
