"""FSDP1 around a model on CUDA, a data worker, a full state dict; the second rank reduces once more than the first."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return x + self.linear(x).relu()


def main():
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    model = nn.Sequential(Block(), Block(), nn.Linear(16, 4))
    for block in model[:2]:
        block.compile()
    model = FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=rank, use_orig_params=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.ones(24, 8, 16))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), num_workers=1)
    losses = []
    for step, (rows,) in enumerate(loader):
        loss = model(rows.cuda()).float().pow(2).mean()
        loss.backward()
        norm = model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        assert 0 < norm.item() < 1
        if step == 1 and rank == 1 and "uneven" in sys.argv:
            dist.all_reduce(norm)
    # finite, and falling
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == len(losses), losses
    whole = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
        torch.save(model.state_dict(), "model.pt")
    counts = torch.empty(dist.get_world_size(), dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(counts, torch.tensor([len(losses)], device="cuda"))
    assert counts.tolist() == [len(losses)] * dist.get_world_size()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
