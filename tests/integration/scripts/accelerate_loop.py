"""accelerate around a plain loop: preparation, accumulation, evaluation, gathering, state saving; CUDA where there is one."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=2)
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return x + self.linear(x).relu()


model = nn.Sequential(Block(), Block(), nn.Linear(16, 4))
for block in model[:2]:
    block.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.ones(36, 16), torch.zeros(36, 4))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
for epoch in range(2):
    model.train()
    for rows, wanted in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(rows), wanted)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        losses = accelerator.gather_for_metrics(model(torch.ones(4, 16, device=accelerator.device)).mean())
    accelerator.print("epoch", epoch, losses.mean().item(), accelerator.device, accelerator.num_processes)
    accelerator.wait_for_everyone()
    accelerator.save_state("state")
accelerator.end_training()
