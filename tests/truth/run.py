"""Runs both sides of a scenario, each in processes of its own with caches of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.truth.compare import Log, parse
from tests.truth.scenarios import SCENARIOS

_ROOT = Path(__file__).resolve().parents[2]


def run(mode: str, name: str, timeout: float = 3600) -> tuple[Log, float]:
    """(log, seconds) of one side; raises ``RuntimeError`` with the end of its log when it fails."""
    ranks = SCENARIOS[name].world_size if mode == "real" else 1
    with tempfile.TemporaryDirectory(prefix="cftdiag-truth-") as scratch:
        started = time.monotonic()
        port = _free_port()
        processes = [_start(mode, name, rank, ranks, port, Path(scratch)) for rank in range(ranks)]
        try:
            codes = [process.wait(timeout=timeout) for process in processes]
        finally:
            for process in processes:
                process.kill()
        texts = [(Path(scratch) / f"log{rank}").read_text(errors="replace") for rank in range(ranks)]
        seconds = time.monotonic() - started
    for code, text in zip(codes, texts, strict=True):
        if code:
            raise RuntimeError(
                f"the {mode} run of {name} ended with {code}:\n" + "\n".join(text.splitlines()[-20:])
            )
    return parse(texts[0]), seconds


def _start(mode: str, name: str, rank: int, ranks: int, port: int, scratch: Path) -> subprocess.Popen[bytes]:
    environment = dict(os.environ, TORCH_LOGS="recompiles,guards", OMP_NUM_THREADS="1", PYTHONHASHSEED="0")
    environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT), environment.get("PYTHONPATH", "")])
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(scratch / f"inductor{rank}")
    environment.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with open(scratch / f"log{rank}", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.truth.program", mode, name],
            env=environment,
            cwd=_ROOT,
            stdout=log,
            stderr=log,
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
