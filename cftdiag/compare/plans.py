"""Two compile plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cftdiag.compare.change import Change
from cftdiag.compare.forecasts import compare_regimes

_VERSIONS = ("torch", "transformers")


def compare_plans(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Fingerprints, settings, regimes, and the compiles that are foreseen after warming."""
    changes = []
    a, b = before["fingerprint"], after["fingerprint"]
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name):
            section = "environment" if name in _VERSIONS else "conditions"
            changes.append(Change(section=section, what=name, before=a.get(name), after=b.get(name)))
    settings = [{s["key"]: s for s in plan["settings"]} for plan in (before, after)]
    for key in dict.fromkeys([*settings[0], *settings[1]]):
        old, new = settings[0].get(key), settings[1].get(key)
        if _value(old) == _value(new):
            continue
        unsafe = bool(new and new.get("unsafe") and not (old and old.get("unsafe")))
        changes.append(
            Change(
                section="settings",
                what=key,
                before=old and old.get("value"),
                after=new and new.get("value"),
                effect="worse" if unsafe else "other",
                severity="warning" if unsafe else "info",
            )
        )
    changes += compare_regimes(before["regimes"], after["regimes"])
    left = [len(plan["forecast"]) for plan in (before, after)]
    if left[0] != left[1]:
        worse = left[1] > left[0]
        changes.append(
            Change(
                section="forecast",
                what="compiles after warming",
                before=left[0],
                after=left[1],
                effect="worse" if worse else "better",
                severity="warning" if worse else "info",
            )
        )
    return changes


def _value(setting: Mapping[str, Any] | None) -> str | None:
    if setting is None:
        return None
    return json.dumps([setting.get("value"), bool(setting.get("unsafe"))], sort_keys=True, default=str)
