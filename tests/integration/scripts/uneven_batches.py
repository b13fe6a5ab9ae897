"""A loop with a collator written by hand: padded batches of their own lengths, a shorter last batch."""

import os

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 20)

    def forward(self, x):
        return x + self.linear(x).relu()


rows = [torch.ones(length, 20) for length in (30, 31, 29, 30, 33, 35, 47, 45, 61, 60, 44, 50, 41)]
loader = DataLoader(rows, batch_size=4, collate_fn=lambda batch: pad_sequence(batch, batch_first=True))
model = nn.Sequential(Block(), Block(), nn.Linear(20, 4))
for block in model[:2]:
    block.compile(backend=os.environ.get("BACKEND", "inductor"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for batch in loader:
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
