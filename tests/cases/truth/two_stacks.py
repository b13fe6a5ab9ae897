# The longer stack is clean, the other one breaks in every block.
import torch
import torch.nn as nn


class Clean(nn.Module):
    def __init__(s):
        super().__init__()
        s.lin = nn.Linear(16, 16)

    def forward(s, x):
        return x + s.lin(x)


class Breaks(Clean):
    def forward(s, x):
        if s.lin(x).abs().max() > 1e9:
            print("overflow")
        return x + s.lin(x)


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb = nn.Embedding(50, 16)
        s.vision = nn.ModuleList(Clean() for _ in range(4))
        s.language = nn.ModuleList(Breaks() for _ in range(3))

    def forward(s, ids):
        x = s.emb(ids)
        for b in s.vision:
            x = b(x)
        for b in s.language:
            x = b(x)
        return x


def build():
    return M(), [{"ids": torch.randint(0, 50, (2, n))} for n in (8, 9)]
