"""Every graph break that the installed torch has: a mechanism, and a remedy that a person can carry out or none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cftdiag.diagnose import CAUSES, diagnose
from cftdiag.diagnose.engine import break_types
from cftdiag.events import Code, Event, Frame
from cftdiag.findings import Finding
from tests.unit.event_samples import detail as detail_of

CODE = Code(qualname="Block.forward", file="/home/me/model.py", line=10)
LINE = Frame(file="/home/me/model.py", line=12, function="forward", code="y = f(x)")
#: Torch's stock sentences, as its registry writes them (torch/_dynamo/graph_break_hints.py).
STOCK = (
    "This graph break is fundamental",
    "may be possible to write Dynamo tracing rules",
    "likely to be a Dynamo bug",
    "may be difficult to debug",
    "may result in an error when running in eager",
    "may have been caused by an earlier graph break",
    "report an issue",
)


def registry() -> list[Mapping[str, Any]]:
    """The newest entry of every id of the installed torch's registry."""
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "_dynamo" / "graph_break_registry.json"
    return [entries[0] for entries in json.loads(path.read_text(encoding="utf-8")).values()]


def finding(entry: Mapping[str, Any]) -> Finding:
    """What is said of a break of that type at ``y = f(x)``, with torch's own explanation and hints."""
    hints = [re.sub(r"\{[^{}]*\}", "it", " ".join(str(h).split())) for h in entry["Hints"]]
    detail = {
        "gb_id": "GB0000",
        "gb_type": entry["Gb_type"],
        "reason": entry["Gb_type"],
        "explanation": entry["Explanation"],
        "hints": hints,
        "fullgraph": False,
    }
    event = Event(
        kind="graph_break",
        time=0.0,
        step=1,
        code=CODE,
        stack=(LINE,),
        detail=detail_of("graph_break", detail),
    )
    (found,) = diagnose([event])
    return found


ENTRIES = registry()


def test_every_type_of_the_installed_torch_has_a_mechanism() -> None:
    assert [e["Gb_type"] for e in ENTRIES if break_types.of(e["Gb_type"]) is None] == []


def test_every_type_that_only_other_releases_have_has_a_mechanism() -> None:
    """Those of 2.11.0, 2.14.1 and 2.15.0 that no release before has, from their own registries."""
    recorded = Path(__file__).parents[1] / "recordings" / "break_types.json"
    by_release = json.loads(recorded.read_text(encoding="utf-8"))
    assert {"2.11.0", "2.14.1", "2.15.0"} <= set(by_release)
    unknown = [t for types in by_release.values() for t in types if break_types.of(t) is None]
    assert unknown == []


@pytest.mark.parametrize("entry", ENTRIES, ids=[str(i) for i in range(len(ENTRIES))])
def test_no_stock_sentence_is_a_remedy(entry: Mapping[str, Any]) -> None:
    found = finding(entry)
    assert found.cause in CAUSES
    shown = [r.summary for r in found.remedies] + list(found.evidence)
    assert not [text for text in shown for stock in STOCK if stock.lower() in text.lower()]
    assert not [r for r in found.remedies if re.search(r"\.detach\(\)", r.summary)]
    assert not [r.summary for r in found.remedies if re.search(r"<(?!it>)\w+>|\{\w+\}", r.summary)]


def test_most_types_have_a_remedy_and_the_rest_have_none() -> None:
    found = [finding(e) for e in ENTRIES]
    fixes = [f for f in found if any(r.applicability != "diagnosis" for r in f.remedies)]
    # Torch 2.13.0: 469 of 517, 2.14.1: 511 of 561, 2.15.0: 540 of 592; what is left are torch's own limits, told with its explanation.
    assert len(fixes) / len(found) > 0.9
    assert all(f.explanation for f in found)


def test_hints_of_an_unknown_type_are_used_where_they_say_what_to_do() -> None:
    stock = "This is likely to be a Dynamo bug. Please report an issue to PyTorch."
    entry = {"Gb_type": "new in torch 3", "Explanation": "Because.", "Hints": [stock, "Use a tuple."]}
    assert [r.summary for r in finding(entry).remedies] == ["Use a tuple."]
    assert finding(entry | {"Hints": [stock]}).remedies == ()
    assert finding(entry).explanation == "`y = f(x)` breaks the graph: new in torch 3. Because."


def test_advice_that_ends_training_is_dropped() -> None:
    assert break_types.actions(["Call .detach() before returning.", "Use a list."]) == ("Use a list.",)


def test_table_names_each_type_once_and_only_known_causes() -> None:
    types, patterns = break_types._table()
    mechanisms = {m.name: m for m in (*types.values(), *(m for _, m in patterns))}
    assert {m.cause for m in mechanisms.values()} <= set(CAUSES)
    assert len(types) > 350
