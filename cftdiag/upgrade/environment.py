"""An environment beside the present one. What is asked for is installed into a folder of its own; all other
packages are those of the present environment, which is read and never written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cftdiag.error_text import shorten
from cftdiag.errors import EnvironmentUnfit, InputError

#: In each environment that is made here: for what, and whether it was finished.
_NOTE = "cftdiag-environment.json"
#: What pip says of a wish that nothing can fulfil; all else is the machine's or the network's.
_WRONG_WISH = re.compile(
    r"No matching distribution|ResolutionImpossible|[Ii]nvalid requirement|conflicting dependencies"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment:
    """One Python with its packages."""

    python: str
    name: str
    """How it is told apart: ``the present environment``, ``torch==2.14.1``, a path."""


def present() -> Environment:
    """The one that runs this."""
    return Environment(python=sys.executable, name="the present environment")


def existing(python: str) -> Environment:
    """The one of another interpreter. Raises :class:`InputError` where there is none."""
    found = shutil.which(python)
    if found is None:
        raise InputError(
            f"{python}: no Python to run; give the path of an interpreter, such as ENV/bin/python"
        )
    return Environment(python=found, name=python)


def folder(requirements: Sequence[str]) -> Path:
    """Where an environment of these requirements is kept: one for each interpreter and wish."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = json.dumps([sys.prefix, sys.version, sorted(requirements)])
    words = "-".join(re.sub(r"[^\w.]+", "-", r).strip("-") for r in requirements)
    return cache / "cftdiag" / "environments" / f"{words[:60]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def make(
    requirements: Sequence[str], place: Path | None = None, say: Callable[[str], None] = lambda text: None
) -> Environment:
    """The present environment with some packages in another version, made once and kept.

    Raises :class:`InputError` for a version that does not exist or does not go together, and
    :class:`EnvironmentUnfit` where it cannot be made; each is pip's own reason on one line.
    """
    where = place or folder(requirements)
    python = where / "bin" / "python"
    name = " ".join(requirements)
    made = _made(where)
    if made == {"requirements": list(requirements), "finished": True}:
        return Environment(python=str(python), name=name)
    if made is None and where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise InputError(f"{where}: is there and was not made by cftdiag upgrade; name another directory")
    say(f"making an environment with {name} in {where}")
    try:
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnfit(f"cannot make {where}: {error.strerror or error}; name a directory") from error
    _note(where, requirements, finished=False)
    # pip itself is borrowed too
    _run(
        [sys.executable, "-m", "venv", "--without-pip", str(where)], f"cannot make an environment in {where}"
    )
    _borrow(where)
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--quiet",
        *requirements,
    ]
    _run(pip, f"cannot install {name}")
    _note(where, requirements, finished=True)
    return Environment(python=str(python), name=name)


def _made(where: Path) -> dict[str, object] | None:
    """What was noted about an environment of ours; None for any other folder."""
    try:
        return dict(json.loads((where / _NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _note(where: Path, requirements: Sequence[str], *, finished: bool) -> None:
    data = {"requirements": list(requirements), "finished": finished}
    (where / _NOTE).write_text(json.dumps(data) + "\n", encoding="utf-8")


def _borrow(where: Path) -> None:
    """Let the new environment see the packages of the present one, behind its own."""
    here = dict.fromkeys([sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"], *_sites()])
    own = where / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    lines = [f"import site; site.addsitedir({path!r})" for path in here if Path(path).is_dir()]
    (own / "cftdiag-present.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _sites() -> list[str]:
    """Packages of the base interpreter, where the present environment sees them."""
    return [path for path in site.getsitepackages() if path in sys.path]


def _run(command: Sequence[str], what: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment, check=False
    )
    if done.returncode == 0:
        return
    reason = pip_reason(done.stderr or done.stdout)
    raised = InputError if _WRONG_WISH.search(reason) else EnvironmentUnfit
    raise raised(f"{what}: {reason}")


def pip_reason(text: str) -> str:
    """What pip says last, on one line: its ``ERROR:`` lines, the most telling one first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [re.sub(r"^(?:ERROR|error):\s*", "", line) for line in lines if re.match(r"(?i)error:", line)]
    told = (
        [line for line in errors if not line.startswith("Could not find a version")] or errors or lines[-1:]
    )
    # of a version that is not there pip lists those that are
    versions = next((m[1] for e in errors if (m := re.search(r"\(from versions: ([^)]*)\)", e))), None)
    known = ""
    if versions and versions != "none":
        known = f" (the newest there are: {', '.join(versions.split(', ')[-5:])})"
    return shorten(" ".join(dict.fromkeys(told)) + known, 400) if told else "no reason given"


def versions(environment: Environment, names: Sequence[str], env: Mapping[str, str]) -> dict[str, str | None]:
    """Installed versions there. Raises :class:`EnvironmentUnfit` where the interpreter does not run."""
    code = (
        "import json, sys\nfrom importlib import metadata\nfound = {}\nfor name in sys.argv[1:]:\n"
        "    try: found[name] = metadata.version(name)\n    except metadata.PackageNotFoundError: found[name] = None\n"
        "print(json.dumps(found))"
    )
    try:
        done = subprocess.run(
            [environment.python, "-c", code, *names],
            capture_output=True,
            text=True,
            env=dict(env),
            check=True,
            timeout=120,
        )
        return dict(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EnvironmentUnfit(f"{environment.name}: its Python does not run ({error})") from error
