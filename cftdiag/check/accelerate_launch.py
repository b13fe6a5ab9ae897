"""What ``accelerate launch`` would start: asked of accelerate itself, for its configuration files decide."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cftdiag.errors import InputError

READER = Path(__file__).resolve().parents[1] / "rehearse" / "read_accelerate.py"
#: Seconds for accelerate's and torch's import.
TIMEOUT_S = 120.0


def ask(
    python: Sequence[str], words: Sequence[str], gpus: int
) -> tuple[tuple[str, ...], dict[str, str], int, int]:
    """(command of one rank, its environment, processes of a node, nodes); :class:`InputError` with
    accelerate's own last word where it refuses.
    """
    try:
        done = subprocess.run(
            [*python, str(READER), str(gpus), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"accelerate launch cannot be read ({error}); check the command after --") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"command"')]
    if done.returncode or not lines:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise InputError(
            f"accelerate launch refuses: {said[-1].strip()[:300] if said else 'no reason given'}; check the command after --"
        )
    told = json.loads(lines[-1])
    return tuple(told["command"]), dict(told["env"]), int(told["processes"]), int(told["nodes"])
