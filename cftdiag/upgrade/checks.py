"""A check run by the interpreter of an environment, with the cftdiag that runs here."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cftdiag
from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.upgrade.environment import Environment, versions

#: Options of a check that write files of their own or decide what is printed.
REFUSED = ("--json", "--plan", "--plots", "--write-baseline", "--output-format", "--keep")


def refuse(arguments: Sequence[str]) -> None:
    """Raise for arguments of a check that have no place in a comparison."""
    own = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    if not arguments:
        raise InputError("no check to run; give its arguments behind --, such as -- --model Qwen3-4B")
    for word in own:
        if word.partition("=")[0] in REFUSED:
            raise InputError(f"{word.partition('=')[0]} has no place in a comparison of two checks; drop it")


def check_in(
    environment: Environment, arguments: Sequence[str], say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """The ``cftdiag.check/1`` object of ``cftdiag check ARGUMENTS`` there.

    Raises :class:`InputError` for what the check itself refuses, and :class:`EnvironmentUnfit` where it
    cannot run there.
    """
    env = _environ(environment)
    found = versions(environment, ("torch", "transformers"), env)
    if found["torch"] is None:
        raise EnvironmentUnfit(f"{environment.name}: has no torch; install it there")
    told = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    say(f"checking with {environment.name} ({told})")
    with tempfile.TemporaryDirectory(prefix="cftdiag-") as scratch:
        saved = Path(scratch) / "check.json"
        command = [environment.python, "-m", "cftdiag", "check", "--json", str(saved), "-q", *arguments]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=env,
            check=False,
        )
        try:
            data = json.loads(saved.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            data = None
    if data is not None:
        return data
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    line = next((x for x in reversed(lines) if x.startswith("error: ")), lines[-1] if lines else "no word")
    reason = line.removeprefix("error: ")
    if "No module named" in reason and "cftdiag" in reason:
        raise EnvironmentUnfit(f"{environment.name}: has no cftdiag; install it there")
    raised = InputError if done.returncode == 2 else EnvironmentUnfit
    raise raised(f"with {environment.name}: {reason}")


def _environ(environment: Environment) -> dict[str, str]:
    """The variables of the child: this very cftdiag goes with it, unless it lies among installed packages, all
    of which would come along.
    """
    home = Path(cftdiag.__file__).resolve().parent.parent
    env = dict(os.environ)
    paths = [p for p in env.pop("PYTHONPATH", "").split(os.pathsep) if p]
    if not {"site-packages", "dist-packages"} & set(home.parts):
        paths.insert(0, str(home))
    if paths:
        env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return env
