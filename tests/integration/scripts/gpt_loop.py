"""A plain loop around a small GPT, compiled as a whole: evaluation between, checkpoints, a shorter last batch."""

import os
import shutil

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, DIM, STEPS = 128, 64, 8
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(DIM, VOCABULARY)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return F.cross_entropy(logits.view(-1, VOCABULARY), ids.view(-1))


if os.path.isdir("out"):
    shutil.rmtree("out")
os.makedirs("out")
raw = GPT()
model = torch.compile(raw, backend=os.environ.get("BACKEND", "inductor"))
optimizer = torch.optim.AdamW(raw.parameters(), lr=1e-3)


@torch.no_grad()
def evaluate():
    model.eval()
    losses = [model(torch.randint(0, VOCABULARY, (4, 32))).item() for _ in range(2)]
    model.train()
    return sum(losses) / len(losses)


best = float("inf")
for step in range(STEPS):
    length = 32 if step % 4 else 48
    rows = 2 if step == STEPS - 1 else 4
    loss = model(torch.randint(0, VOCABULARY, (rows, length)))
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
    assert torch.isfinite(loss) and torch.isfinite(norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print("step", step, "loss", loss.item(), "norm", norm.item())
    if step % 3 == 2:
        best = min(best, evaluate())
        torch.save({"model": raw.state_dict(), "optimizer": optimizer.state_dict()}, "out/checkpoint.pt")
state = torch.load("out/checkpoint.pt")
raw.load_state_dict(state["model"])
print("done", best)
