"""Lightning Fabric: it compiles what it sets up, in bfloat16 autocast; a loop of one's own."""

import os

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = L.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
fabric.launch()
fabric.seed_everything(0)
net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
compiled = torch.compile(net, backend=os.environ.get("BACKEND", "inductor"))
model, optimizer = fabric.setup(compiled, torch.optim.AdamW(net.parameters(), lr=1e-3))
data = TensorDataset(torch.randn(22, 16), torch.randint(0, 4, (22,)))
loader = fabric.setup_dataloaders(DataLoader(data, batch_size=4, shuffle=True))
for epoch in range(2):
    for index, (rows, wanted) in enumerate(loader):
        accumulating = index % 2 == 0
        with fabric.no_backward_sync(model, enabled=accumulating):
            fabric.backward(F.cross_entropy(model(rows), wanted))
        if not accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        fabric.print("epoch", epoch, model(torch.ones(8, 16)).argmax(-1).tolist())
    model.train()
    fabric.save("state.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})
fabric.load("state.ckpt", {"model": model, "optimizer": optimizer})
