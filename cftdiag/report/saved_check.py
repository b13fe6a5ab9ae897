"""Read a saved check."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cftdiag.check.report import SCHEMA, VERDICTS
from cftdiag.findings import KINDS, SEVERITIES
from cftdiag.options import DEPTHS
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


_NUMBER = (int, float, type(None))
_INT = (int, type(None))
_TEXT = (str, type(None))
#: Types of what the renderings read of each block, finding, remedy and compile, where it is there.
_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "blocks": {
        "fqn": (str,), "class": _TEXT, "kind": _TEXT, "graphs": _INT, "graph_breaks": _INT, "recompiles": _INT,
        "fullgraph": (bool, type(None)),
    },
    "findings": {
        "kind": (str,), "cause": (str,), "severity": (str,), "blocks": (list, type(None)), "where": (dict, type(None)),
        "guard": _TEXT, "count": _INT, "steps": (list, type(None)), "lengths": (list, type(None)),
        "evidence": (list, type(None)), "explanation": _TEXT, "remedies": (list, type(None)),
    },
    "remedies": {
        "summary": (str,), "change": (dict, type(None)), "edit": _TEXT, "applicability": _TEXT,
        "verified": (bool, type(None)), "before": (dict, type(None)), "after": (dict, type(None)),
    },
    "where": {"file": _TEXT, "line": _INT, "function": _TEXT, "code": _TEXT},
    "compiles": {
        "compile_id": _TEXT, "block": _TEXT, "step": _INT, "length": _INT, "seconds": _NUMBER, "cause": _TEXT,
        "rank": _INT,
        "guards": (list, type(None)),
    },
    "timing": {"wall_s": _NUMBER, "peak_rss_gb": _NUMBER, "passes": (list, type(None))},
    "subject": {
        **dict.fromkeys(("name", "type", "model_class", "model_type", "attn", "dtype", "ac", "compile_scope", "method", "objective"), _TEXT),
        "parameters": _INT, "compile_kwargs": (dict, type(None)), "world_size": _INT, "tensor_parallel": _INT,
    },
    "change_first": {"edit": (str,), "before": (dict,), "after": (dict,)},
    "script": {"steps": _INT, "ranks": (list, type(None)), "written": (list, type(None))},
    "asked": {"arguments": (list, type(None)), "directory": _TEXT},
}  # fmt: skip


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
        data = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
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
    words: dict[str, tuple[str, ...]] = {"verdict": VERDICTS, "depth": (*DEPTHS, "codegen", "run")}
    for key, known in words.items():
        if data[key] not in known:
            raise ValueError(f"{name}: unknown {key} {data[key]!r}; one of {', '.join(dict.fromkeys(known))}")
    for key in ("blocks", "findings", "compiles", "change_first"):
        if not all(isinstance(item, dict) for item in _listed(data.get(key))):
            raise ValueError(
                f"{name}: {key!r} holds something that is no object; write the file again with cftdiag check --json"
            )
    for where, items in _parts(data):
        for item in items:
            _typed(item, where, name)
    for finding in data["findings"]:
        for key, those in (("severity", SEVERITIES), ("kind", KINDS)):
            if finding[key] not in those:
                raise ValueError(f"{name}: unknown {key} {finding[key]!r}; one of {', '.join(those)}")
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


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _parts(data: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    """(name of its fields, objects) of every part of a check that :data:`_FIELDS` describes."""
    findings = data["findings"]
    return [
        ("blocks", data["blocks"]),
        ("findings", findings),
        ("compiles", data["compiles"]),
        ("change_first", _listed(data.get("change_first"))),
        ("where", [f["where"] for f in findings if f.get("where") is not None]),
        ("remedies", [r for f in findings for r in _listed(f.get("remedies"))]),
        *(
            (key, [data[key]])
            for key in ("timing", "subject", "script", "asked")
            if data.get(key) is not None
        ),
    ]


def _typed(item: Any, where: str, name: str) -> None:
    """Raise ``ValueError`` for a part of another shape than the renderings read."""
    fields = _FIELDS[where]
    required = [key for key, kinds in fields.items() if type(None) not in kinds]
    wrong = None if isinstance(item, dict) else "no object"
    if wrong is None:
        missing = [key for key in required if key not in item]
        bad = [
            key
            for key, kinds in fields.items()
            if key in item
            and (not isinstance(item[key], kinds) or (isinstance(item[key], bool) and bool not in kinds))
        ]
        wrong = f"no {missing[0]!r}" if missing else f"a wrong {bad[0]!r}" if bad else None
    if wrong is not None:
        raise ValueError(f"{name}: {where!r} has {wrong}; write the file again with cftdiag check --json")
