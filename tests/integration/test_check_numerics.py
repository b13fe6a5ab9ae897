"""Compiled against eager: wrong losses and gradients are found, and dropout, half precision and tied weights
raise no alarm.
"""

from __future__ import annotations

import json

import pytest

PROGRAM = """
import json, sys
import torch
import torch.nn as nn
import torch.nn.functional as F
import cftdiag
from cftdiag.check import Subject

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width=8, dropout=0.0):
        super().__init__()
        self.lin, self.drop = nn.Linear(width, width), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(self.lin(x).relu())


class Model(nn.Module):
    def __init__(self, tie=False, dropout=0.0):
        super().__init__()
        self.emb = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(Block(dropout=dropout) for _ in range(2))
        self.head = nn.Linear(8, 16, bias=False)
        if tie:
            self.head.weight = self.emb.weight

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def batches(n=2):
    return [{"ids": torch.arange(10).view(2, 5) % 16} for _ in range(n)]


class WrongWhenIgnored(torch.autograd.Function):
    \"\"\"Divides by all targets when it is compiled, by those that count when it is not.\"\"\"

    @staticmethod
    def forward(ctx, logits, targets):
        kept = targets != -100
        per = F.cross_entropy(logits.float(), targets.clamp(min=0), reduction="none") * kept
        count = kept.numel() if torch.compiler.is_compiling() else kept.sum()
        ctx.save_for_backward(logits, targets)
        ctx.count = count
        return per.sum() / count

    @staticmethod
    def backward(ctx, grad):
        logits, targets = ctx.saved_tensors
        p = logits.float().softmax(-1) - F.one_hot(targets.clamp(min=0), logits.shape[-1])
        return (p * (targets != -100)[:, None] * grad / ctx.count).to(logits.dtype), None


def fused():
    model = Model()
    loss_function = torch.compile(WrongWhenIgnored.apply, backend="aot_eager")

    def step(model, batch):
        targets = batch["ids"].flatten().clone()
        targets[::3] = -100
        loss = loss_function(model(**batch).flatten(0, 1), targets)
        loss.backward()
        model.zero_grad(set_to_none=True)
        return loss.detach()

    return Subject(model=model, batches=batches(), step=step)


SUBJECTS = {
    "clean": lambda: Subject(model=Model(), batches=batches()),
    "tied": lambda: Subject(model=Model(tie=True), batches=batches()),
    "dropout": lambda: Subject(model=Model(dropout=0.5), batches=batches()),
    "bfloat16": lambda: Subject(model=Model().bfloat16(), batches=batches()),
    "fused loss": fused,
}
report = cftdiag.check(SUBJECTS[sys.argv[1]](), verify=False)
print("@@" + json.dumps(report.to_dict()))
"""


def findings(warm, name):
    out = warm.run(PROGRAM, name).stdout
    return json.loads(out.rpartition("@@")[2])["findings"]


@pytest.mark.parametrize("name", ["clean", "tied", "dropout", "bfloat16"])
def test_no_false_alarm(warm, name):
    assert not [f for f in findings(warm, name) if f["kind"] == "numerics"]


def test_a_loss_that_is_wrong_only_when_compiled(warm):
    found = [f for f in findings(warm, "fused loss") if f["kind"] == "numerics"]
    assert found and found[0]["cause"] == "silent_wrong_numerics" and found[0]["severity"] == "error"
