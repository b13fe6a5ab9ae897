"""FSDP2 as people write it: torchrun, blocks compiled one by one, padded batches of each rank's own."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
random.seed(rank)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        return x + self.linear(self.norm(x)).relu()


model = nn.Sequential(*(Block() for _ in range(3)), nn.Linear(32, 8))
mesh = init_device_mesh("cpu", (world,))
precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
for block in model[:3]:
    block.compile(backend=os.environ.get("BACKEND", "inductor"))
    fully_shard(block, mesh=mesh, mp_policy=precision)
fully_shard(model, mesh=mesh, mp_policy=precision)
for module in (*model[:3], model):
    # gloo has neither the averaging nor the scaling reduction
    module.set_force_sum_reduction_for_comms(True)
    module.set_gradient_divide_factor(1.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
names = [None] * world
dist.all_gather_object(names, f"rank {rank}")
assert len(names) == world and None not in names
for step in range(5):
    # the second rank meets an empty sentence on its own
    length = 16 if step < 2 else 24 if step < 3 or rank == 0 else 1
    loss = model(torch.ones(2, length, 32)).float().pow(2).mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    count = torch.tensor([length])
    dist.all_reduce(count)
    if rank == 0:
        print(step, loss.item(), norm.item(), count.item())
dist.barrier()
dist.destroy_process_group()
