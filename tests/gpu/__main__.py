"""``python -m tests.gpu`` or ``make gpu``, on a machine with a CUDA device: how far the prediction for it
agrees with it.

Runs with whatever Python is at hand: no pytest, no network, nothing is installed. Exit code 1 when something
differs that was predicted, 3 where it cannot run.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.gpu.agreement import Row

NEEDED = ("torch", "transformers", "triton")


def main() -> int:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"{sys.executable} lacks {', '.join(missing)}; pip install {' '.join(missing)}, or carry their wheels over",
            file=sys.stderr,
        )
        return 3
    import torch

    from cftdiag.target import DEVICES

    if not torch.cuda.is_available():
        print(f"no CUDA device here, or torch {torch.__version__} is a build without CUDA", file=sys.stderr)
        return 3
    name = torch.cuda.get_device_name(0)
    target = next((key for key in DEVICES if key in name.lower()), None)
    if target is None:
        print(f"no target in the table for {name}; it has {', '.join(DEVICES)}", file=sys.stderr)
        return 3
    import transformers
    import triton

    from tests.gpu import agreement

    versions = f"torch {torch.__version__}, triton {triton.__version__}, transformers {transformers.__version__}, python {sys.version.split()[0]}"
    print(f"{name} against --target {target}; {agreement.described()}\n{versions}", flush=True)
    started = time.monotonic()
    rows = agreement.of_reports(*agreement.reports(target))
    _show(rows, started)
    logs = agreement.of_logs(*agreement.logs(target))
    _show(logs, started)
    differ = [row for row in (*rows, *logs) if row.binding and not row.agrees]
    print(f"{'differs' if differ else 'agrees'} [{time.monotonic() - started:.0f} s]")
    return 1 if differ else 0


def _show(rows: Sequence[Row], started: float) -> None:
    for row in rows:
        word = "agrees " if row.agrees else "differs" if row.binding else "open   "
        print(f"{word}  {row.alike:4} of {row.of:4}  {row.what}")
        for line in row.differ[:8]:
            print(f"                       {line[:240]}")
    print(f"    after {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
