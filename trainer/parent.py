"""A rank does not outlive its launcher."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_launcher() -> None:
    """End this process when the launcher that started it as a rank dies; nothing for one without a launcher.

    A launcher ended by SIGKILL cannot end its ranks, and these would go on beside the ranks of the job that is
    started again. SIGKILL: what a rank would still write is what the new job may be reading. Linux only.
    """
    if "LOCAL_RANK" not in os.environ or not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0 and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it died between the two lines
