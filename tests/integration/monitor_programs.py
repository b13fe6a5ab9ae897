"""Small programs that the monitor's tests watch. ``python monitor_programs.py NAME [ARGS]``; none of them
knows of cftdiag.

Every program compiles with aot_eager or eager, takes a handful of steps and prints what a test compares.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time

# as datasets and transformers do: they ask whether there is a torch before anybody imports it
assert importlib.util.find_spec("torch") is not None

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)

DIM = 8


class Block(nn.Module):
    def __init__(self, width: int = DIM) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).relu()


class Model(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def build(backend: str = "eager") -> tuple[Model, torch.optim.Optimizer]:
    """A model whose blocks are compiled in place for one length each, and its optimizer."""
    torch.manual_seed(0)
    model = Model()
    for layer in model.layers:
        layer.compile(backend=backend, dynamic=False)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, lengths: list[int], after_step=lambda step: None
) -> None:
    """One step a length; gradients are averaged where there are several ranks."""
    for step, length in enumerate(lengths, 1):
        model(torch.ones(2, length, DIM, requires_grad=True)).sum().backward()
        if dist.is_initialized():
            for p in model.parameters():
                dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        after_step(step)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def loop(lengths: str = "3,3,5,5") -> None:
    """Plain loop."""
    model, optimizer = build()
    train(model, optimizer, numbers(lengths))
    print("done", flush=True)


def raises() -> None:
    """Ends with an exception."""
    loop("3")
    raise RuntimeError("the training fell over")


def killed(number: str, lengths: str = "3,3,5,5") -> None:
    """Ends by a signal that it sends itself after its last step."""
    model, optimizer = build()
    train(model, optimizer, numbers(lengths))
    os.kill(os.getpid(), int(number))


def waits() -> None:
    """Trains, then waits for signals and says which came."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(
            number,
            lambda got, frame: (
                print("got", signal.Signals(got).name, flush=True),
                sys.exit(7) if got == signal.SIGTERM else None,
            ),
        )
    loop("3")
    while True:
        time.sleep(0.05)


def ranks(*by_rank: str) -> None:
    """One list of lengths a rank (the last one for all further ranks), under torchrun."""
    dist.init_process_group("gloo")
    mine = by_rank[min(dist.get_rank(), len(by_rank) - 1)]
    model, optimizer = build("aot_eager")
    train(model, optimizer, numbers(mine))
    dist.barrier()
    dist.destroy_process_group()


def spawned() -> None:
    """Ranks made by torch.multiprocessing: no RANK in their environment."""
    import torch.multiprocessing as mp

    mp.spawn(_spawned, nprocs=2)


def _spawned(rank: int) -> None:
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29613", rank=rank, world_size=2)
    model, optimizer = build()
    train(model, optimizer, [3, 3, 5 + rank])
    dist.destroy_process_group()


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        # A worker that compiles: its events are no rank's.
        return torch.compile(lambda x: x + index, backend="eager")(torch.ones(3 if index < 4 else 5, DIM))


def workers(context: str) -> None:
    """Data workers that compile, forked or spawned."""
    model, optimizer = build()
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=4, num_workers=1, multiprocessing_context=context
    )
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("done")


def imports() -> None:
    """Which modules were imported before the script imported them itself."""
    print("torch._dynamo" in sys.modules)


def helper() -> None:
    """A rank that starts another program which compiles, too, while it trains."""
    import subprocess

    model, optimizer = build()
    train(model, optimizer, [3, 3])
    subprocess.run([sys.executable, __file__, "loop", "4,6"], check=True)
    train(model, optimizer, [5])


def stalls(seconds: str) -> None:
    """Rank 1 meets a new length whose compile takes long; the others wait for it."""
    dist.init_process_group("gloo")

    def slow(gm, inputs):
        if inputs[-1].shape[1] == 7:
            time.sleep(float(seconds))
        return gm

    model, optimizer = build(slow)
    train(model, optimizer, [3, 3, 3, 7 if dist.get_rank() == 1 else 3, 3])
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
