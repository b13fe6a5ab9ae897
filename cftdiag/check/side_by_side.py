"""Proofs side by side: the changes that a check will try are tried by two at a time, each in an interpreter of its
own, before they are judged one after the other. Torch-free.
"""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from cftdiag.check.proofs import Attempt, Compare, Prover, Run
from cftdiag.findings import Finding

#: Seconds of proofs from which a second interpreter pays, which takes eight of a processor to start.
WORTH_S = 20.0


def worth(prover: Prover, findings: Sequence[Finding], seconds: float) -> bool:
    """Whether a second interpreter would end the proofs sooner; ``seconds``: what one run takes."""
    changes = len(prover.attempts(findings))
    return changes > 1 and changes * seconds >= WORTH_S and processors() > 1


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def try_ahead(
    prover: Prover, findings: Sequence[Finding], run: Run, compare: Compare, stop: Callable[[], None]
) -> None:
    """Try the changes of all remedies here and, by ``run`` and ``compare``, in a thread beside it; ``prover`` then knows
    what came of them.

    ``stop`` ends what ``run`` has begun; it is called once, however this ends. What the thread could not run is left
    for the prover.
    """
    todo: queue.SimpleQueue[Sequence[Attempt]] = queue.SimpleQueue()
    for attempts in prover.attempts(findings):
        todo.put(attempts)
    over = threading.Event()

    def work(by: Prover) -> None:
        with contextlib.suppress(queue.Empty):
            while not over.is_set():
                for attempt in todo.get_nowait():
                    by.attempt(attempt)

    def beside() -> None:
        # its interpreter was stopped, or did not start: what it left is tried here, and fails here if it must
        with contextlib.suppress(Exception):
            work(_twin(prover, run, compare))

    thread = threading.Thread(target=beside, name="cftdiag-proofs", daemon=True)
    thread.start()
    try:
        work(_twin(prover))
        thread.join()
    finally:
        over.set()
        stop()
        thread.join()


def _twin(prover: Prover, run: Run | None = None, compare: Compare | None = None) -> Prover:
    """A prover that shares what is known, counts for itself, and runs by other means where they are given."""
    twin: Any = copy.copy(prover)
    if run is not None and compare is not None:
        twin.run, twin.compare = run, compare
    result: Prover = twin
    return result
