"""A loop that asks for CUDA everywhere: autocast, a gradient scaler, streams, events, memory, pinned batches."""

import torch
from torch import nn

assert torch.cuda.is_available() and torch.cuda.device_count() >= 1
torch.cuda.set_device(0)
device = torch.device("cuda", torch.cuda.current_device())
print(torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory >> 30, "GB")
assert torch.cuda.get_device_capability()[0] >= 8 and torch.cuda.is_bf16_supported()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32, device="cuda")

    def forward(self, x):
        return x + self.linear(x).relu()


model = nn.Sequential(Block(), Block()).to(device).cuda()
for block in model:
    block.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
scaler = torch.amp.GradScaler("cuda")
side = torch.cuda.Stream()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for step in range(6):
    batch = torch.ones(4, 16 if step < 3 else 24, 32).pin_memory()
    with torch.cuda.stream(side):
        batch = batch.to(device, non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    batch.record_stream(torch.cuda.current_stream())
    start.record()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(batch).float().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    end.record()
    torch.cuda.synchronize()
    noise = torch.zeros(2, device="cuda:0") + torch.arange(2, device=0)
    print(step, loss.item(), start.elapsed_time(end), torch.cuda.max_memory_allocated(), noise.sum().item())
torch.cuda.empty_cache()
