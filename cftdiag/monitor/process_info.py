"""Who this process is among the ranks, and what it runs on."""

from __future__ import annotations

import collections
import os
import platform
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from cftdiag.monitor import rundir
from cftdiag.torch_settings import SOME_RELEASES

#: Versions that decide what torch.compile does.
PACKAGES = ("cftdiag", "torch", "triton", "transformers", "accelerate", "trl", "peft")


def rank() -> int:
    """This process's rank: of the process group where there is one, else of the launcher's environment, else
    0.
    """
    group = _group()
    return group[0] if group else _number("RANK", 0)


def world_size() -> int:
    """Number of ranks, from the same places."""
    group = _group()
    return group[1] if group else _number("WORLD_SIZE", 1)


def _group() -> tuple[int, int] | None:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default


def in_data_worker() -> bool:
    """True in a worker process of a DataLoader, however it was started."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def environment() -> dict[str, Any]:
    """Versions and machine. Reads package metadata, imports nothing."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def facts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The head of a session: everything about it that does not change."""
    return {
        "id": uuid.uuid4().hex[:12],
        "rank": rank(),
        "world_size": world_size(),
        "local_rank": _number("LOCAL_RANK", 0),
        "restart": _number("TORCHELASTIC_RESTART_COUNT", 0),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": time.time(),
        "argv": sys.argv[:50],
        "device": _device(),
        "environment": environment(),
        "settings": dict(settings),
        "torch_settings": _torch_settings(),
    }


def trained(optimizer: Any) -> dict[str, int]:
    """Elements of the parameters that an optimizer updates, by dtype; of sharded ones all shards together."""
    counts: collections.Counter[str] = collections.Counter()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return dict(counts)


def _torch_settings() -> list[str]:
    """Settings of remedies that this torch has; those of Inductor are left out, which a run need not import."""
    if "torch" not in sys.modules:
        return []
    from cftdiag.torch_private.dynamo import settings_there

    return list(settings_there(name for name in SOME_RELEASES if not name.startswith("torch._inductor.")))


def write_run_file(directory: Path, head: Mapping[str, Any]) -> None:
    """Write ``run.json`` where the launcher has not; a second session in the same directory leaves it as it
    is.
    """
    path = directory / rundir.RUN_FILE
    if head["rank"] == 0 and not path.exists():
        keys = ("started", "argv", "world_size", "environment", "settings")
        rundir.write_json(path, {"schema": rundir.RUN_SCHEMA, **{k: head[k] for k in keys}})


def _device() -> str:
    torch = sys.modules.get("torch")
    # Asking for a GPU's name would initialise CUDA before the script does.
    if torch is not None and torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    return "cpu" if torch is None or not torch.version.cuda else "cuda, not initialised yet"
