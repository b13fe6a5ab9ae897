"""Two losses through one compiled graph: the gradient norms that weight them ask for the graph twice.

Source: bytetriper/RAE#74, locuslab/torchdeq#11. Cause: autograd.grad(..., retain_graph=True) through a compiled
block; AOTAutograd donated the saved activations. Fix: torch._functorch.config.donated_buffer = False, or no
retain_graph.

Observed:
- torch 2.13.0+cpu: RuntimeError at step 3; with donated_buffer = False no error
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, d=32):
        super().__init__()
        s.up = nn.Linear(d, 4 * d)
        s.down = nn.Linear(4 * d, d)

    def forward(s, x):
        return x + s.down(torch.nn.functional.gelu(s.up(x)) * torch.sigmoid(s.up(x)))


class Model(nn.Module):
    def __init__(s, n=2):
        super().__init__()
        s.layers = nn.ModuleList(Block() for _ in range(n))
        s.head = nn.Linear(32, 32)

    def forward(s, x):
        x = x.detach().requires_grad_(torch.is_grad_enabled())
        for b in s.layers:
            x = b(x)
        return s.head(x)


def build():
    return Model(), [dict(x=torch.randn(2, 8, 32)) for _ in range(4)]


COUNT = [0]


def step(model, batch):
    out = model(**batch)
    rec, adv, weight = out.pow(2).mean(), -out.mean(), 0.0
    if COUNT[0] >= 2:  # the adversarial loss starts later
        p = model.layers[0].up.weight
        (a,) = torch.autograd.grad(rec, p, retain_graph=True)
        (b,) = torch.autograd.grad(adv, p, retain_graph=True)
        weight = (a.norm() / (b.norm() + 1e-4)).detach()
    COUNT[0] += 1
    loss = rec + weight * adv
    loss.backward()
    model.zero_grad(set_to_none=True)
    return loss.detach()


EXPECT = {
    "kind": "error",
    "block": "layers.*",
    "cause": "donated_buffer",
    "line": "torch.autograd.grad(rec, p, retain_graph=True)",
    "fix": "torch._functorch.config.donated_buffer = False, or no retain_graph",
}
