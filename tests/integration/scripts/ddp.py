"""DDP around a model that is compiled as a whole, with a DistributedSampler and a last partial batch."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 4)

    def forward(self, rows):
        return self.down(nn.functional.gelu(self.up(rows)))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
wrapped = torch.compile(DistributedDataParallel(model), backend=os.environ.get("BACKEND", "inductor"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.ones(22, 16))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (rows,) in loader:
        wrapped(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
