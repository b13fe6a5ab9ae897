"""Read a saved check."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cftdiag.check.report import SCHEMA
from cftdiag.report import forecast

#: What every check holds, with the type of each.
_REQUIRED: dict[str, type | tuple[type, ...]] = {
    "verdict": str,
    "subject": dict,
    "depth": str,
    "environment": dict,
    "blocks": list,
    "findings": list,
    "compiles": list,
    "timing": dict,
    "undetermined": list,
}


def read_check(path: str | Path) -> dict[str, Any]:
    """The check saved in ``path``; raises ``ValueError`` with one line when it is unreadable or something
    else.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(
            f"{path}: cannot be read ({reason}); give a file written by cftdiag check --json"
        ) from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"{path}: not JSON ({error}); give a file written by cftdiag check --json"
        ) from error
    return validate(data, str(path))


def validate(data: Any, name: str) -> dict[str, Any]:
    """``data`` when it has the shape of a check; ``name`` stands in the message otherwise."""
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise ValueError(
            f"{name}: the schema is {schema!r}, not {SCHEMA}; give a file written by cftdiag check --json"
        )
    for key, kind in _REQUIRED.items():
        if not isinstance(data.get(key), kind):
            raise ValueError(
                f"{name}: {key!r} is missing or malformed; write the file again with cftdiag check --json"
            )
    for key in ("blocks", "findings", "compiles"):
        if not all(isinstance(item, dict) for item in data[key]):
            raise ValueError(
                f"{name}: {key!r} holds something that is no object; write the file again with cftdiag check --json"
            )
    try:
        _read_forecast(data)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{name}: 'forecast' is malformed; write the file again with cftdiag check --json"
        ) from error
    return data


def _read_forecast(data: Mapping[str, Any]) -> None:
    """Raise whatever the renderers would for a forecast of another shape."""
    forecast.shown(data)
    for _, rows, length, visits in (data.get("forecast") or {}).get("points") or ():
        int(rows), int(length), int(visits)
