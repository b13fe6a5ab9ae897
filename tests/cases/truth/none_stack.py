# A layer that is itself a list (as in x-transformers), and optional parts that are all absent.
import torch
import torch.nn as nn


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb = nn.Embedding(50, 16)
        s.layers = nn.ModuleList(nn.ModuleList([nn.LayerNorm(16), nn.Linear(16, 16)]) for _ in range(3))
        s.opt = nn.ModuleList([None] * 3)

    def forward(s, ids):
        x = s.emb(ids)
        for norm, lin in s.layers:
            x = x + lin(norm(x))
        return x


def build():
    return M(), [{"ids": torch.randint(0, 50, (2, n))} for n in (8, 9)]
