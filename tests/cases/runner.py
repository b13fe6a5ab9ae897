"""Run cases of the corpus through ``cftdiag.check`` and print one JSON line each: ``python -m tests.cases.runner FILE ...``.

Protocol of a case: ``build() -> (model, batches)``, ``EXPECT`` (kind, cause, block, line or guard, limit_hit, also), and the optional names
``COMPILE``, ``step``, ``before_step``, ``wrap``, ``check``. Each case runs in a forked child of its own, so that no case sees another's modules.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import cftdiag
from cftdiag.check import CheckReport, Subject


def load(path: Path) -> ModuleType:
    """The case as a module that its own functions can be found in."""
    spec = importlib.util.spec_from_file_location("case_" + path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def subject(case: ModuleType) -> Subject:
    """The case as a Subject."""
    torch.manual_seed(0)
    model, batches = case.build()
    optional = {name: getattr(case, name, None) for name in ("step", "before_step", "wrap", "check")}
    return Subject(model=model, batches=batches, compile_kwargs=getattr(case, "COMPILE", {}), **optional)


def run(path: Path, **options: Any) -> tuple[ModuleType, CheckReport]:
    """Check one case."""
    case = load(path)
    return case, cftdiag.check(subject(case), **options)


def main(paths: list[str], **options: Any) -> None:
    """Check every case, each in a child of its own."""
    torch.set_num_threads(1)
    for name in paths:
        sys.stdout.flush()
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            continue
        started = time.monotonic()
        line: dict[str, Any] = {"case": Path(name).stem}
        try:
            _, report = run(Path(name), **options)
            line["report"] = report.to_dict()
        except BaseException:  # noqa: BLE001 - a child that fails must say so and end here
            line["error"] = traceback.format_exc()
        line["seconds"] = round(time.monotonic() - started, 1)
        print(json.dumps(line), flush=True)
        os._exit(0)


if __name__ == "__main__":
    flags = [a for a in sys.argv[1:] if a.startswith("--")]
    main([a for a in sys.argv[1:] if not a.startswith("--")], verify="--verify" in flags)
