"""Run by the script's own interpreter: asks ``accelerate launch`` what it would start, and starts nothing.

``python read_accelerate.py GPUS WORDS...`` prints one JSON line: ``command``, ``env`` (what differs from this
process's), ``processes`` and ``nodes``. GPUS is the number that this machine is taken to have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, NoReturn


def _tell(command: list[str], env: dict[str, str], processes: int, nodes: int) -> NoReturn:
    new = {name: value for name, value in env.items() if os.environ.get(name) != value}
    print(json.dumps({"command": command, "env": new, "processes": processes, "nodes": nodes}))
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Take the place of what accelerate would start: torchrun, or one process."""
    import torch.distributed.run
    from accelerate.commands import launch

    before = dict(os.environ)
    gpus = int(sys.argv[1])

    def torchrun(args: Any) -> None:
        env = {name: value for name, value in os.environ.items() if before.get(name) != value}
        os.environ.clear()
        os.environ.update(before)
        script = [args.training_script, *args.training_script_args]
        command = script if args.no_python else [sys.executable, *(["-m"] if args.module else []), *script]
        nodes = str(args.nnodes).rpartition(":")[2]
        _tell(command, {**before, **env}, int(args.nproc_per_node), int(nodes))

    def popen(command: list[str], env: dict[str, str] | None = None, **more: Any) -> None:
        _tell([sys.executable if word == "python" else word for word in command], dict(env or {}), 1, 1)

    torch.cuda.is_available = lambda: gpus > 0  # type: ignore[method-assign]
    torch.cuda.device_count = lambda: gpus  # type: ignore[method-assign]
    launch.check_cuda_p2p_ib_support = lambda: True
    torch.distributed.run.run = torchrun
    args = launch.launch_command_parser().parse_args(sys.argv[2:])
    subprocess.Popen = popen  # type: ignore[assignment,misc]
    launch.launch_command(args)


if __name__ == "__main__":
    main()
