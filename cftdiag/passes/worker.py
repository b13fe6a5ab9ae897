"""The interpreter that forks a child for every task: ``python -m cftdiag.passes.worker CONTROL_FD ENTRY
MODULE...``.

``ENTRY`` is ``module:function`` of what a child runs; the modules are imported before any fork, so that no
child has to.
"""

from __future__ import annotations

import importlib
import os
import sys


def main() -> None:
    from cftdiag.passes.launch import die_with_parent, serve
    from cftdiag.quiet import quiet_imports

    die_with_parent()
    quiet_imports()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    control, entry, *modules = sys.argv[1:]
    for name in modules:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    module, _, function = entry.partition(":")
    serve(int(control), getattr(importlib.import_module(module), function))


if __name__ == "__main__":
    main()
