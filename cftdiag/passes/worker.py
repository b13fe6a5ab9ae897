"""The interpreter that forks a child for every pass: ``python -m cftdiag.passes.worker CONTROL_FD``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    from cftdiag.passes.launch import die_with_parent, serve

    die_with_parent()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # imported here, before any fork, and never used here: children start with it done
    import torch
    import transformers  # noqa: F401

    torch.set_num_threads(1)
    from cftdiag.passes.run_pass import run_task

    serve(int(sys.argv[1]), run_task)


if __name__ == "__main__":
    main()
