"""Read whatever `cftdiag diff` compares: a saved check, run, kernels report or plan, or a run's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cftdiag.plan import load_plan
from cftdiag.report import saved_check

#: Schema -> keys without which it cannot be compared, with the type of each.
_REQUIRED: dict[str, dict[str, type]] = {
    "cftdiag.run/1": {
        "verdict": str,
        "source": dict,
        "environment": dict,
        "compiles": list,
        "recompiles": list,
        "graph_breaks": list,
        "limit_hits": list,
        "errors": list,
        "findings": list,
        "divergence": list,
        "alarms": list,
        "problems": list,
        "timing": dict,
        "steps": int,
        "ranks": int,
        "world_size": int,
    },
    "cftdiag.kernels/1": {"blocks": list, "environment": dict},
}


def read_document(path: str | Path) -> dict[str, Any]:
    """The document in ``path``: a JSON file of `check`, `report`, `kernels` or `check --plan`, a directory of
    `cftdiag run`, or one that TORCH_TRACE wrote.

    Raises ``ValueError`` with one line when it is unreadable or something else.
    """
    from cftdiag.monitor import is_run
    from cftdiag.monitor import report as report_run

    if is_run(path):
        return report_run(path)
    path = _kernels_in(path)
    if Path(path).is_dir():
        raise ValueError(f"{path}: a directory, but no run; give a run directory or a JSON file of cftdiag")
    data = _read(path)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema == "cftdiag.plan/1":
        return load_plan(path).to_dict()
    if schema in _REQUIRED:
        return _complete(data, path)
    if schema == saved_check.SCHEMA:
        return saved_check.validate(data, str(path))
    raise ValueError(
        f"{path}: the schema is {schema!r}; give a JSON file of cftdiag check, report, kernels or check --plan"
    )


def kernels_report(path: str | Path) -> dict[str, Any] | None:
    """The report of `cftdiag kernels` in ``path``, a file or the directory of its --out; None where something else
    or nothing that can be read is there. Raises ``ValueError`` for one that is damaged.
    """
    try:
        data = _read(_kernels_in(path))
    except (ValueError, RecursionError):
        return None  # whoever reads it as a check says what is wrong with it
    if not isinstance(data, dict) or data.get("schema") != "cftdiag.kernels/1":
        return None
    return _complete(data, path)


def _kernels_in(path: str | Path) -> str | Path:
    """The report in what `kernels --out DIR` writes; any other path as it is."""
    inside = Path(path) / "kernels.json"
    return inside if inside.is_file() else path


def _complete(data: dict[str, Any], path: str | Path) -> dict[str, Any]:
    for key, kind in _REQUIRED[data["schema"]].items():
        if not isinstance(data.get(key), kind):
            raise ValueError(f"{path}: {key!r} is missing or malformed; write the file again")
    return data


def _read(path: str | Path) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(
            f"{path}: cannot be read ({reason}); give a run or a JSON file of cftdiag"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); give a run or a JSON file of cftdiag") from error
