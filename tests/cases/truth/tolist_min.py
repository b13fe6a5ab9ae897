# A block that reads sizes with tolist() after a routing choice that depends on weights, as JetMoe does.
import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s):
        super().__init__()
        s.gate = nn.Linear(32, 4)
        s.w = nn.Parameter(torch.randn(4, 32, 32) * 0.1)

    def forward(s, x):
        flat = x.reshape(-1, 32)
        top = s.gate(flat).argmax(-1)
        order = top.argsort()
        sizes = torch.zeros(4, dtype=torch.long, device=x.device).scatter_add(0, top, torch.ones_like(top))
        sizes = sizes.tolist()
        parts = flat[order].split(sizes)
        y = torch.cat([p @ s.w[i] for i, p in enumerate(parts)])
        out = torch.zeros_like(flat).index_copy(0, order, y)
        return x + out.view_as(x)


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb = nn.Embedding(100, 32)
        s.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(s, ids):
        x = s.emb(ids)
        for b in s.blocks:
            x = b(x)
        return x


def build():
    return M().train(), [{"ids": torch.randint(0, 100, (b, n))} for b, n in ((4, 48), (4, 61), (3, 57))]
