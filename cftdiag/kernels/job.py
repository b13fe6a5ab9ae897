"""The child process of `cftdiag kernels`: ``python -m cftdiag.kernels.job`` reads a request on stdin and
writes JSON lines on stdout.

Lowering for a device that is not there replaces parts of torch while it works, so it never runs in a process
that does anything else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from cftdiag.errors import EnvironmentUnfit, InputError

#: One length is enough to see the kernels; two show what changes between them.
DEFAULT_LENGTHS = (512,)
_MARK = "cftdiag-job "  # tells our lines from whatever a library prints


def run(request: Mapping[str, Any], progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Describe in a child process. ``request``: ``recipe``, ``options`` (of CheckOptions) and ``request`` (of
    describe.Request).

    Raises :class:`InputError` or :class:`EnvironmentUnfit`. The child and its scratch folder are gone when
    this returns, whatever happened.
    """
    scratch = tempfile.mkdtemp(prefix="cftdiag-kernels-")
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    environment.update(TORCHINDUCTOR_CACHE_DIR=f"{scratch}/inductor", TRITON_CACHE_DIR=f"{scratch}/triton")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    with open(os.path.join(scratch, "log"), "w+b") as log:
        # the package imports this module too, of which runpy warns: that is nothing a child died of
        command = [sys.executable, "-W", "ignore::RuntimeWarning:runpy", "-m", "cftdiag.kernels.job"]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        try:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(json.dumps(request))
            child.stdin.close()
            for line in child.stdout:
                if not line.startswith(_MARK):
                    continue
                message = json.loads(line[len(_MARK) :])
                match message["type"]:
                    case "progress":
                        progress(message["text"])
                    case "input_error":
                        raise InputError(message["text"])
                    case "unfit":
                        raise EnvironmentUnfit(message["text"])
                    case "result":
                        result: dict[str, Any] = message["result"]
                        return result
            log.seek(0)
            said = log.read().decode(errors="replace").strip()
            raise EnvironmentUnfit(
                f"lowering ended without a result ({_error(said) or f'exit status {child.wait()}'}); report it"
            ) from _Child(said)
        finally:
            child.kill()
            child.wait()
            shutil.rmtree(scratch, ignore_errors=True)


class _Child(RuntimeError):
    """What a child wrote before it died; --debug shows it."""


def _error(log: str) -> str:
    """The line of the last exception in a traceback, which torch lets advice follow, else the last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(?:Error|Exception|Failed|Unsupported)\b", line)]
    return " ".join((raised or lines or [""])[-1].split())[:300]


def kernels(
    model: str,
    *,
    target: str,
    block: str | None = None,
    compile_kernels: bool = True,
    with_source: bool = False,
    with_bytecode: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> dict[str, Any]:
    """What ``cftdiag kernels`` reports, as a dict of schema ``cftdiag.kernels/1``.

    ``model`` is what ``--model`` takes, ``target`` a name of `cftdiag.target.TARGETS`, ``options`` fields of
    :class:`~cftdiag.options.CheckOptions` (``lengths``, ``batch_size``, ``attn`` ...). Runs in a child process. Raises
    :class:`~cftdiag.errors.InputError` and :class:`~cftdiag.errors.EnvironmentUnfit`.
    """
    from cftdiag.options import CheckOptions
    from cftdiag.subject import resolve

    recipe = resolve(model)
    if recipe["type"] != "file":
        options = {"lengths": DEFAULT_LENGTHS, "layers": "auto", **options}
    request = {
        "target": target,
        "block": block,
        "compile_kernels": compile_kernels,
        "with_bytecode": with_bytecode,
        "with_source": with_source,
    }
    return run(
        {"recipe": recipe, "options": CheckOptions(model=model, **options).to_dict(), "request": request},
        progress,
    )


def _send(message: Mapping[str, Any]) -> None:
    sys.stdout.write(_MARK + json.dumps(message, default=str) + "\n")
    sys.stdout.flush()


def main() -> None:
    from cftdiag.passes.launch import die_with_parent

    die_with_parent()
    task = json.load(sys.stdin)
    import torch

    torch.set_num_threads(1)
    from cftdiag.kernels.describe import Request, describe
    from cftdiag.options import CheckOptions
    from cftdiag.recipe import DepthNotReached
    from cftdiag.target.errors import TargetUnavailable

    try:
        result = describe(
            task["recipe"],
            CheckOptions.from_dict(task["options"]),
            Request(**task["request"]),
            lambda text: _send({"type": "progress", "text": text}),
        )
        _send({"type": "result", "result": result})
    except InputError as error:
        _send({"type": "input_error", "text": str(error)})
    except (TargetUnavailable, DepthNotReached, EnvironmentUnfit) as error:
        _send({"type": "unfit", "text": str(error)})


if __name__ == "__main__":
    main()
