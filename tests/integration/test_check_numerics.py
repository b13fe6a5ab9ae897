"""Compiled against eager: wrong losses and gradients are found, and dropout, half precision and tied weights
raise no alarm.
"""

from __future__ import annotations

import json

import pytest
import torch

from cftdiag.passes import numerics

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


class Counting(Model):  # another loss from its fifth step on, where it is compiled
    def __init__(self):
        super().__init__()
        self.layers[0].forward = self.late
        self.step = torch.zeros(())

    def late(self, x):
        return x * torch.where(self.step > 4, 2.0 if torch.compiler.is_compiling() else 1.0, 1.0)

    def forward(self, ids):
        self.step += 1
        return super().forward(ids)


SUBJECTS = {
    "late": lambda: Subject(model=Counting(), batches=batches(18)),
    "clean": lambda: Subject(model=Model(), batches=batches()),
    "tied": lambda: Subject(model=Model(tie=True), batches=batches()),
    "dropout": lambda: Subject(model=Model(dropout=0.5), batches=batches()),
    "bfloat16": lambda: Subject(model=Model().bfloat16(), batches=batches()),
    "fused loss": fused,
}
report = cftdiag.check(SUBJECTS[sys.argv[1]](), verify=False)
print("@@" + json.dumps(report.to_dict()))
"""


def report(warm, name):
    out = warm.run(PROGRAM, name).stdout
    return json.loads(out.rpartition("@@")[2])


def findings(warm, name):
    return report(warm, name)["findings"]


@pytest.mark.parametrize("name", ["clean", "tied", "dropout", "bfloat16"])
def test_no_false_alarm(warm, name):
    assert not [f for f in findings(warm, name) if f["kind"] == "numerics"]


def test_a_loss_that_is_wrong_only_when_compiled(warm):
    found = [f for f in findings(warm, "fused loss") if f["kind"] == "numerics"]
    assert found and found[0]["cause"] == "silent_wrong_numerics" and found[0]["severity"] == "error"


def test_numbers_that_differ_late_are_met_and_how_far_was_compared_is_told(warm):
    told = report(warm, "late")
    assert [f["cause"] for f in told["findings"] if f["kind"] == "numerics"] == ["silent_wrong_numerics"]
    assert any("in the first 16 steps" in line for line in told["undetermined"])


def test_a_gradient_of_zeros_and_none_are_alike() -> None:
    some = {"w.grad": torch.ones(2)}
    assert not numerics.compare(some | {"unused.grad": torch.zeros(2)}, some, "high")
    assert not numerics.compare(some, some | {"unused.grad": torch.zeros(2)}, "high")
    [wrong] = numerics.compare(some | {"used.grad": torch.ones(2)}, some, "high")
    assert wrong.name == "used.grad"
    [wrong] = numerics.compare({"loss of step 1": torch.zeros(())}, {}, "high")
    assert wrong.name == "loss of step 1"


def test_what_a_module_hands_back_is_recorded_for_leaves_and_others() -> None:
    trace = numerics.Trace()
    layer = torch.nn.Linear(2, 2)
    for x in (torch.ones(3, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True) * 2):
        numerics.record_inputs(trace, "layers.0", (x,), {})
        (layer(x).sum() + x.sum()).backward()
    first, second = trace.gradients["layers.0 input 0"]
    expected = layer.weight.sum(0).expand(3, 2) + 1
    assert torch.allclose(first, expected) and torch.allclose(second, expected)
    assert [float(value.mean()) for value in trace.inputs["layers.0 input 0"]] == [1.0, 2.0]


def test_the_module_at_fault_is_the_last_one_that_differs() -> None:
    modules = ["layers.0", "layers.1", "layers.2", "layers.10"]
    assert numerics.wrong_module(["layers.0 input 0.grad", "layers.1.lin.weight.grad"], modules) == "layers.1"
    assert numerics.wrong_module(["emb.weight.grad", "layers.1 input 0.grad"], modules) == "layers.1"
    assert numerics.wrong_module(["loss of step 1"], modules) is None
    # a forward that is wrong touches all that follows: the module before the first that was given other values
    given = [f"value of layers.{i} input 0 (call {call})" for i in (1, 2, 10) for call in (1, 2)]
    assert numerics.wrong_module(["layers.10 input 0.grad", *given], modules) == "layers.0"
    # from the second call on, a wrong gradient has changed the weights of all
    later = [name for name in given if name.endswith("(call 2)")]
    assert numerics.wrong_module(["layers.1 input 0.grad", *later], modules) == "layers.1"
    assert numerics.wrong_module(["value of layers.0 input 0 (call 1)"], modules) is None
