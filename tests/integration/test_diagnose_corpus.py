"""Every example of a cause yields its cause, and cases that nobody tuned for are diagnosed, on the real Recorder.

Each pass runs in a forked child of its own. What only the check finds by watching behaviour (hooks, numerics, offloading) is tested there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cftdiag.diagnose import CAUSES
from tests import diagnose_case

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = Path(diagnose_case.__file__).parents[1] / "cftdiag" / "diagnose" / "examples"
BY_BEHAVIOUR = {"late_hook_ignored", "compiled_region_not_reached", "saved_tensor_hooks_whole_graph", "silent_wrong_numerics"}
EXTRA = sorted((ROOT / "cases" / "extra").glob("*.py"))


def shown(key: str) -> list[dict[str, Any]]:
    path = EXAMPLES / (key.replace(".", "_") + ".py")
    # A cause that is no graph break needs no fullgraph pass.
    return diagnose_case.findings_of(path, fullgraph=CAUSES[key].kinds == ("graph_break",))


@pytest.mark.parametrize("key", [key for key, cause in CAUSES.items() if cause.example and key not in BY_BEHAVIOUR])
def test_example_yields_its_cause(key: str) -> None:
    found = [f for f in shown(key) if f["cause"] == key]
    assert found
    assert {f["kind"] for f in found} <= set(CAUSES[key].kinds)
    assert all("{" not in f["explanation"] and "<" not in f["explanation"].replace("<root>", "") for f in found)


@pytest.mark.parametrize("key", sorted(BY_BEHAVIOUR))
def test_example_yields_its_cause_in_the_check(key: str) -> None:
    report = diagnose_case.in_child(lambda: check(EXAMPLES / f"{key}.py"))
    assert key in {f["cause"] for f in report["findings"]}


def check(path: Path) -> dict[str, Any]:
    import cftdiag
    from cftdiag.check import Subject

    case = diagnose_case.load(path)
    model, batches = case.build()
    own = {name: getattr(case, name, None) for name in ("step", "before_step", "wrap", "check")}
    return cftdiag.check(Subject(model=model, batches=batches, **own), verify=False).to_dict()


@pytest.mark.parametrize("path", EXTRA, ids=lambda p: p.stem)
def test_unseen_case(path: Path) -> None:
    expected = diagnose_case.load(path).EXPECT
    found = [f for f in diagnose_case.findings_of(path) if f["severity"] != "info"]
    wanted = set() if expected["kind"] == "none" else {(expected["kind"], expected["cause"])}
    if expected.get("limit_hit"):
        wanted.add(("limit_hit", expected["cause"]))
    reported = {(f["kind"], f["cause"]) for f in found}
    assert wanted <= reported <= wanted | {tuple(pair) for pair in expected.get("also", ())}
    for finding in found:
        if (finding["kind"], finding["cause"]) == (expected["kind"], expected["cause"]):
            assert _plain(expected.get("line", "")) in _plain(finding["where"]["code"] or "")
            assert expected.get("guard", "") in (finding["guard"] or "")


def _plain(code: str) -> str:
    return re.sub(r"\s+", "", code)
