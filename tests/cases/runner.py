"""Run cases of the corpus through ``cftdiag.check`` and print one JSON line each: ``python -m
tests.cases.runner FILE ...``.

Protocol of a case: ``build() -> (model, batches)``, ``EXPECT`` (kind, cause, block, line or guard, limit_hit,
also), and the optional names ``COMPILE``, ``step``, ``before_step``, ``wrap``, ``check``. Each case runs in a
forked child of its own, so that no case sees another's modules.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import cftdiag
from cftdiag.check import CheckReport, Subject

#: What every case imports, here once ahead of its children. Nothing is compiled here: where torch is built for CUDA a
#: compiled backward leaves threads of autograd behind, and no forked child has a backward then.
IMPORTED = ("torch._dynamo.convert_frame", "torch._functorch.aot_autograd", "cftdiag.passes.run_pass")


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


def main(paths: list[str], jobs: int = 2, **options: Any) -> None:
    """Check every case, each in a child of its own, ``jobs`` at a time."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        running: dict[int, Path] = {}
        for i, name in enumerate(paths):
            if len(running) == jobs:
                _told(running)
            out = Path(folder) / f"{i}.json"
            sys.stdout.flush()
            child = os.fork()
            if child:
                running[child] = out
            else:
                out.write_text(json.dumps(_line(Path(name), options)))
                os._exit(0)
        while running:
            _told(running)


def _told(running: dict[int, Path]) -> None:
    """Wait for any child and print its line; one that died before it wrote says so."""
    child, status = os.wait()
    out = running.pop(child)
    print(
        out.read_text()
        if out.exists()
        else json.dumps({"case": "?", "error": f"a child ended with status {status}"}),
        flush=True,
    )


def _line(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    line: dict[str, Any] = {"case": path.stem}
    try:
        line["report"] = run(path, **options)[1].to_dict()
    except BaseException:  # noqa: BLE001 - a child that fails must say so and end here
        line["error"] = traceback.format_exc()
    line["seconds"] = round(time.monotonic() - started, 1)
    return line


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    flags = [a for a in sys.argv[1:] if a.startswith("--")]
    main([a for a in sys.argv[1:] if not a.startswith("--")], verify="--verify" in flags)
