"""Helpers that every test may use; the environment is settled here, before torch is imported anywhere."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

# One thread: the tests measure behaviour, not speed, and a forked child with a live thread pool can hang.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A test that needs the network is a broken test.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A cache of its own, so that neither an earlier session nor the user's own compiles decide between hit and
# miss.
if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="cftdiag-tests-inductor-")
    atexit.register(shutil.rmtree, os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Dynamo's caches, counters and stance empty before and after; one thread."""
    import torch

    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a snippet in a fresh interpreter.

    ``run_python(code, *args, env=None, check=True, timeout=300)`` dedents ``code``, runs it from the
    repository's root with ``env`` laid over this environment (a value of None removes the variable), and
    returns the completed process with text output. With ``check`` a non-zero exit fails the test and shows
    both streams.
    """

    def run(
        code: str,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        check: bool = True,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        merged: dict[str, str] = dict(os.environ)
        for key, value in (env or {}).items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = value
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), *args],
            cwd=ROOT,
            env=merged,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode != 0:
            pytest.fail(
                f"snippet exited {done.returncode}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
            )
        return done

    return run
