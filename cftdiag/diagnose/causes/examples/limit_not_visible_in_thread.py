"""The limit is raised in the main thread; training runs in a worker thread."""

import threading

import torch
from torch import nn

FACTORS = {step: 1.0 / (step + 1) for step in range(64)}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, step):
        return x + self.linear(x) * FACTORS[step]


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def wrap(model):
    torch._dynamo.config.recompile_limit = 64
    for block in model.layers:
        block.compile(backend="aot_eager", fullgraph=True)


def step(model, batch):
    raised = []

    def run():
        try:
            model(**batch).sum().backward()
        except Exception as error:  # noqa: BLE001 - raised again in the caller
            raised.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    worker.join()
    if raised:
        raise raised[0]


def build():
    return Model(1), [{"x": torch.randn(2, 6, 8), "step": step} for step in range(12)]
