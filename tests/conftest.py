"""Helpers that every test may use; the environment is settled here, before torch is imported anywhere."""

from __future__ import annotations

import atexit
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.warm import Warm

# One thread: the tests measure behaviour, not speed, and a forked child with a live thread pool can hang.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A test that needs the network is a broken test.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A cache of its own, so that neither an earlier session nor the user's own compiles decide between hit and
# miss.
for _variable in ("TORCHINDUCTOR_CACHE_DIR", "HF_MODULES_CACHE"):
    if _variable not in os.environ:
        os.environ[_variable] = tempfile.mkdtemp(prefix="cftdiag-tests-")
        atexit.register(shutil.rmtree, os.environ[_variable], ignore_errors=True)

ROOT = Path(__file__).resolve().parent.parent
WARM = Warm()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--everything", action="store_true", help="run the tests marked `everything`, too")
    parser.addoption(
        "--times", metavar="FILE", help="append each test's processor time to FILE, a JSON line each"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only ``--everything`` runs; a test asked for by its name runs anyhow."""
    left_out = []
    for item in items:
        mark = item.get_closest_marker("everything")
        if mark is None:
            continue
        if not mark.args:
            raise pytest.UsageError(
                f"{item.nodeid}: say in everything(...) why, and what stays in `make test`"
            )
        left_out.append(item)
    if left_out and not config.option.everything and not any("::" in arg for arg in config.args):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def pytest_sessionfinish() -> None:
    WARM.close()


def cpu_seconds() -> float:
    """Processor time of this process, its children that have ended, and the warmed interpreter."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used) + WARM.cpu()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    started = cpu_seconds()
    result = yield
    if item.config.option.times:
        line = {"test": item.nodeid, "cpu": round(cpu_seconds() - started, 3)}
        with open(item.config.option.times, "a") as file:
            file.write(json.dumps(line) + "\n")
    return result


@pytest.fixture(scope="session")
def warm() -> Warm:
    """The warmed interpreter: ``warm.run(program, *args, ...)`` runs a program in a child of it.
    See tests/README.md.
    """
    return WARM


#: A frame or an attribute of ours: what a report must never blame.
_OURS = re.compile(
    r"\bcftdiag/(?:capture|check|fastforward|forecast|monitor|passes|rehearse|report|target|torch_private)/\w+\.py|_cftdiag_\w+"
)


@pytest.fixture(scope="session", autouse=True)
def no_finding_names_us() -> Iterator[None]:
    """No finding that any test makes in this process, live or from a recording, names our own code."""
    from cftdiag.findings import Finding

    made = Finding.__post_init__

    def checked(finding: Finding) -> None:
        made(finding)
        said = (finding.where.file, finding.guard, finding.explanation, *finding.evidence, *finding.blocks)
        told = [text for text in said if text and _OURS.search(text)]
        assert not told, f"a finding names our own code: {told}"

    Finding.__post_init__ = checked  # type: ignore[method-assign]
    yield
    Finding.__post_init__ = made  # type: ignore[method-assign]


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
    """Run a snippet in a fresh interpreter, for what is about its start; anything else is cheaper in ``warm``.

    ``run_python(code, *args, env=None, check=True, timeout=900)`` dedents ``code``, runs it from the
    repository's root with ``env`` laid over this environment (a value of None removes the variable), and
    returns the completed process with text output. With ``check`` a non-zero exit fails the test and shows
    both streams.
    """

    def run(
        code: str,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        check: bool = True,
        timeout: float = 900,
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
