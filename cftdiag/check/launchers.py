"""Reading a training command: which launcher starts it, over how many ranks, and what one rank runs.

Launchers are read, never started. Torch-free.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cftdiag.check import accelerate_launch
from cftdiag.errors import InputError

#: Options of torchrun that take a value, underscores for dashes.
_TORCHRUN_VALUES = (
    "event_log_handler", "local_addr", "local_ranks_filter", "log_dir", "logs_specs", "master_addr", "master_port",
    "max_restarts", "monitor_interval", "nnodes", "node_rank", "nproc_per_node", "numa_binding", "rdzv_backend",
    "rdzv_conf", "rdzv_endpoint", "rdzv_id", "redirects", "role", "shutdown_timeout", "signals_to_handle",
    "start_method", "tee",
)  # fmt: skip
_TORCHRUN_FLAGS = (
    "duplicate_stderr_filters",
    "no_python",
    "run_path",
    "standalone",
    "use_env",
    "virtual_local_rank",
)
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.run")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """What one rank of a command runs."""

    command: tuple[str, ...]
    world_size: int = 1
    local_world_size: int = 1
    launcher: str | None = None
    """``torchrun``, ``accelerate``, ``deepspeed`` or ``tune`` (torchtune's); None for a plain command."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What the launcher would put into every rank's environment."""

    def environment(self, rank: int) -> dict[str, str]:
        """The environment of one rank, as torchrun would set it; nothing for a plain command of one process."""
        if self.launcher is None and self.world_size == 1:
            return dict(self.env)
        local = rank % self.local_world_size
        return {
            **self.env,
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(rank // self.local_world_size),
            "GROUP_WORLD_SIZE": str(max(self.world_size // self.local_world_size, 1)),
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "rehearsal",
        }


def read(command: Sequence[str], world_size: int | None = None) -> Launch:
    """The launch of a command; ``world_size`` goes over what the launcher says.

    Raises :class:`InputError` for a command that cannot be found or read.
    """
    words = list(command)
    if not words:
        raise InputError("no command after --; give the one that trains, for example python train.py")
    if shutil.which(words[0]) is None:
        raise InputError(f"no command {words[0]} here; check the command after --")
    launch = _read(words, world_size)
    hiding = _hiding(launch.command)
    if hiding:
        raise InputError(
            f"{hiding} hides the rehearsal from the interpreter, and the script would train for real; drop it"
        )
    if world_size is not None:
        local = launch.local_world_size if launch.local_world_size > 1 else min(world_size, 8)
        launch = dataclasses.replace(launch, world_size=world_size, local_world_size=min(local, world_size))
    if launch.world_size < 1:
        raise InputError("the launcher asks this machine for its number of GPUs; give --world-size")
    return launch


def _read(words: list[str], world_size: int | None) -> Launch:
    name = os.path.basename(words[0])
    if name.startswith("python") and "-m" in words[1:]:
        at = words.index("-m")
        # options of the interpreter stand before -m; a script's own -m stands behind the script
        if all(word.startswith("-") for word in words[1:at]) and at + 1 < len(words):
            python, module, rest = words[:at], words[at + 1], words[at + 2 :]
            if module in _TORCHRUN_MODULES:
                return _torchrun(python, rest)
            if module.startswith("accelerate.commands"):
                return _accelerate(python, rest, world_size)
            if module == "deepspeed.launcher.runner":
                return _deepspeed(python, rest)
    if name == "torchrun":
        return _torchrun([interpreter(words[0])], words[1:])
    if name == "accelerate" and words[1:2] == ["launch"]:
        return _accelerate([interpreter(words[0])], words[2:], world_size)
    if name == "accelerate-launch":
        return _accelerate([interpreter(words[0])], words[1:], world_size)
    if name == "tune" and words[1:2] == ["run"]:
        return _tune(words)
    if name == "deepspeed":
        return _deepspeed([interpreter(words[0])], words[1:])
    return Launch(command=tuple(words))


def _hiding(command: Sequence[str]) -> str | None:
    """An option of the interpreter that leaves out PYTHONPATH or sitecustomize."""
    if not os.path.basename(command[0]).startswith("python"):
        return None
    for word in command[1:]:
        if word in ("-c", "-m") or not word.startswith("-") or word == "-":
            return None
        if not word.startswith(("--", "-X", "-W")) and set("IES") & set(word):
            return word
    return None


def interpreter(executable: str) -> str:
    """The Python that runs a console script: of its first line, else beside it, else the one of this process."""
    path = Path(shutil.which(executable) or executable)
    try:
        with open(path, "rb") as stream:
            first = stream.readline(4096)
    except OSError:
        first = b""
    if first.startswith(b"#!"):
        words = first[2:].decode(errors="replace").split()
        if words and "python" in os.path.basename(words[0]) and os.access(words[0], os.X_OK):
            return words[0]
    beside = path.with_name("python")
    return str(beside) if os.access(beside, os.X_OK) else sys.executable


class _Parser(argparse.ArgumentParser):
    """Says what is wrong instead of leaving the process."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise InputError(f"{self.prog}: {message}; check the command after --")


def _parser(name: str, values: Sequence[str], flags: Sequence[str]) -> _Parser:
    parser = _Parser(prog=name, add_help=False, allow_abbrev=False)
    for option in values:
        parser.add_argument(*{f"--{option}", f"--{option.replace('_', '-')}"}, dest=option)
    for option in flags:
        parser.add_argument(
            *{f"--{option}", f"--{option.replace('_', '-')}"}, dest=option, action="store_true"
        )
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _torchrun(python: list[str], words: list[str]) -> Launch:
    parser = _parser("torchrun", _TORCHRUN_VALUES, _TORCHRUN_FLAGS)
    parser.add_argument("-m", "--module", dest="module", action="store_true")
    parser.add_argument("-r", dest="redirects")
    parser.add_argument("-t", dest="tee")
    asked = parser.parse_args(words)
    local = _count(asked.nproc_per_node or "1", "--nproc-per-node")
    nodes = _count(str(asked.nnodes or "1").rpartition(":")[2], "--nnodes")
    if asked.no_python:
        command = [asked.script, *asked.arguments]
    else:
        command = [*python, *(["-m"] if asked.module else []), asked.script, *asked.arguments]
    return Launch(
        command=tuple(command), world_size=local * nodes, local_world_size=max(local, 1), launcher="torchrun"
    )


def _tune(words: list[str]) -> Launch:
    """``tune run`` takes torchrun's options; without any it runs the recipe in its own process."""
    launch = _torchrun([], words[2:])
    if len(launch.command) == len(words) - 2:
        return Launch(command=tuple(words))
    return dataclasses.replace(launch, command=(*words[:2], *launch.command), launcher="tune")


def _deepspeed(python: list[str], words: list[str]) -> Launch:
    values = (
        "hostfile", "include", "exclude", "num_nodes", "min_elastic_nodes", "max_elastic_nodes", "num_gpus",
        "master_port", "master_addr", "node_rank", "launcher", "launcher_args", "autotuning", "elastic_training",
        "bind_core_list", "ssh_port", "save_pid", "enable_each_rank_log", "venv_script",
    )  # fmt: skip
    flags = ("no_python", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "bind_cores_to_rank")
    parser = _parser("deepspeed", values, flags)
    parser.add_argument("--module", dest="module", action="store_true")
    asked = parser.parse_args(words)
    local = _count(asked.num_gpus or "gpu", "--num_gpus")
    nodes = _count(asked.num_nodes or "1", "--num_nodes")
    start = [] if asked.no_python else [*python, *(["-m"] if asked.module else [])]
    return Launch(
        command=(*start, asked.script, *asked.arguments),
        world_size=local * nodes,
        local_world_size=max(local, 1),
        launcher="deepspeed",
    )


def _accelerate(python: list[str], words: list[str], world_size: int | None) -> Launch:
    command, env, processes, nodes = accelerate_launch.ask(python, words, world_size or 1)
    return Launch(
        command=command,
        world_size=processes * nodes,
        local_world_size=processes,
        launcher="accelerate",
        env=env,
    )


def _count(text: str, option: str) -> int:
    """Processes of one node; 0 for the number of GPUs, which is the machine's."""
    if text in ("gpu", "auto", "cuda", "xpu", "cpu"):
        return 0
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"{option} {text} is no number of processes; check the command after --")
    return int(text)
