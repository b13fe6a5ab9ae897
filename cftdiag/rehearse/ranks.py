"""One rank of a world whose other ranks are not there: torch's fake process group, and what it leaves out."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from cftdiag.rehearse.import_hooks import after_import
from cftdiag.rehearse.settings import Rehearsal


def install(settings: Rehearsal) -> None:
    """Let ``torch.distributed`` start a fake process group, whatever backend the script asks for."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    from cftdiag.torch_private import rehearsal

    asked = {"backend": "nccl"}

    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        from cftdiag.torch_private.world import FakeStore

        asked["backend"] = str(backend).partition(",")[0].rpartition(":")[2] if backend else "nccl"
        if world_size < 0:
            rank, world_size = _number("RANK"), _number("WORLD_SIZE")
        more = {} if timeout is None else {"timeout": timeout}
        real_init("fake", rank=rank, world_size=world_size, store=FakeStore(), **more)

    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        kwargs.pop("device_id", None)
        return real_group(ranks, timeout, None, *args, **kwargs)

    def get_backend(group: Any = None) -> str:
        # torch's own code chooses devices by it; the script is told what it asked for
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        return real_backend(group) if caller.startswith("torch.") else asked["backend"]

    real_init, real_group, real_backend = c10d.init_process_group, c10d.new_group, c10d.get_backend
    _replace(init_process_group, real_init)
    _replace(new_group, real_group)
    if settings.device is not None:
        dist.is_nccl_available = lambda: True
    dist.get_backend = functools.wraps(real_backend)(get_backend)
    for function in (all_gather_object, gather_object, broadcast_object_list, scatter_object_list):
        _replace(function, getattr(c10d, function.__name__))
    _reduce_in_python()
    planner = "torch.distributed.checkpoint.default_planner"
    after_import(planner, lambda module: rehearsal.trust_checkpoint_plans())
    _spawn_in_place(settings)


class _Ended:
    """What ``torch.multiprocessing.spawn(..., join=False)`` returns of processes that have ended."""

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """True: all have ended."""
        return True


def _spawn_in_place(settings: Rehearsal) -> None:
    """A script that starts its own ranks runs the asked-for one of them in its own process."""
    import torch.multiprocessing as mp

    def spawn(
        fn: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True, *more: Any, **kwargs: Any
    ) -> _Ended | None:
        fn(settings.rank % nprocs, *args)
        return None if join else _Ended()

    mp.spawn = functools.wraps(mp.spawn)(spawn)


def _replace(ours: Callable[..., Any], real: Callable[..., Any]) -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    wrapped = functools.wraps(real)(ours)
    for module in (dist, c10d):
        setattr(module, real.__name__, wrapped)


def _reduce_in_python() -> None:
    """Give every DDP a hook that reduces nothing: the fake group's own answer is none that DDP can read."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from cftdiag.torch_private.rehearsal import replace_comm_hook

    def reduced(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    initialise = DistributedDataParallel.__init__
    # a hook of the script's own would be a second one
    register = replace_comm_hook(lambda reducer, state, hook: None)

    @functools.wraps(initialise)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        register(self.reducer, None, reduced)

    DistributedDataParallel.__init__ = build


def _number(name: str) -> int:
    if name not in os.environ:
        raise ValueError(
            f"Error initializing torch.distributed using env:// rendezvous: environment variable {name} expected, but not set"
        )
    return int(os.environ[name])


# ---- objects: pickled bytes of another rank cannot be made up, so every rank is taken to say the same ----


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Every rank gives what this one gives."""
    object_list[:] = [obj] * len(object_list)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: Any = None,
    group: Any = None,
    group_dst: Any = None,
) -> None:
    """The gathering rank gets what it gives itself from every rank."""
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def broadcast_object_list(object_list: list[Any], *args: Any, **kwargs: Any) -> None:
    """A rank keeps what it has: the sender's objects are not known elsewhere."""


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """This rank gets its own part where it is the sender, else None."""
    import torch.distributed as dist

    if scatter_object_input_list is not None:
        scatter_object_output_list[0] = scatter_object_input_list[
            dist.get_rank() % len(scatter_object_input_list)
        ]
