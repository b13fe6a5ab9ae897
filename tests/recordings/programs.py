"""The small programs behind the recorded traces: ``TORCH_TRACE=DIR python programs.py NAME`` writes one."""

from __future__ import annotations

import sys

import torch
from torch import nn


class Block(nn.Module):
    """One linear layer with a body of the program's choice."""

    def __init__(self, index: int, body: str) -> None:
        super().__init__()
        self.layer_idx = index
        self.lin = nn.Linear(8, 8)
        self.body = body

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lin(x)
        if self.body == "break":
            x = self.helper(x)
        elif self.body == "index":
            x = x * self.layer_idx
        elif self.body == "branch" and x.sum() > 0:
            x = x * 2
        return x.relu()


def run(body: str, lengths: tuple[int, ...], *, blocks: int = 2, grad: bool = True, **kwargs: object) -> None:
    """Compile each block, run forward and backward over lengths; failures of the compile are part of the
    recording.
    """
    torch.manual_seed(0)
    layers = [Block(i, body) for i in range(blocks)]
    for layer in layers:
        layer.compile(**kwargs)
    for length in lengths:
        x = torch.ones(2, length, 8, requires_grad=grad)
        try:
            for layer in layers:
                x = layer(x)
            x.sum().backward()
        except Exception as error:  # noqa: BLE001 - what fails is part of the recording
            print(type(error).__name__)


PROGRAMS = {
    "break": lambda: run("break", (5, 6), backend="eager"),
    "fullgraph": lambda: run("break", (5,), backend="eager", fullgraph=True),
    "branch": lambda: run("branch", (5,), backend="eager"),
    "lengths": lambda: run("", (5, 6, 7), backend="aot_eager", grad=False),
    "index": lambda: run("index", (5,), backend="eager", blocks=3),
    "limit": lambda: run("", (5, 6, 7), backend="eager", dynamic=False, recompile_limit=2),
    "limit_fullgraph": lambda: run(
        "", (5, 6, 7), backend="eager", dynamic=False, recompile_limit=2, fullgraph=True
    ),
    "backend_error": lambda: run("", (5,), backend=failing),
    "inductor": lambda: run("", (5,), blocks=1),
}


def failing(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> None:
    """A backend that cannot."""
    raise RuntimeError("this backend is broken")


if __name__ == "__main__":
    torch.set_num_threads(1)
    PROGRAMS[sys.argv[1]]()
