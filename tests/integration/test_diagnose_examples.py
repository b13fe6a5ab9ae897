"""Every example of a cause yields its cause, on the real Recorder; those that behaviour shows, in the check.

Each pass runs in a forked child of its own. What `cftdiag kernels` shows is in ``test_target_kernels.py``;
the corpus and the extra cases run through the check in ``test_check_corpus.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cftdiag.diagnose import CAUSES
from cftdiag.diagnose.engine.cause import CHECK, EXAMPLES
from tests import diagnose_case

BY_BEHAVIOUR = {
    "late_hook_ignored",
    "compiled_region_not_reached",
    "saved_tensor_hooks_whole_graph",
    "silent_wrong_numerics",
    "kv_cache",  # its model names its blocks in its own way, which only the check finds
}


def shown(key: str) -> list[dict[str, Any]]:
    path = EXAMPLES / (key.replace(".", "_") + ".py")
    # A cause that is no graph break needs no fullgraph pass.
    return diagnose_case.findings_of(path, fullgraph=CAUSES[key].kinds == ("graph_break",))


@pytest.mark.parametrize(
    "key",
    [
        key
        for key, cause in CAUSES.items()
        if cause.seen_by == CHECK and cause.example and key not in BY_BEHAVIOUR
    ],
)
def test_example_yields_its_cause(key: str) -> None:
    found = [f for f in shown(key) if f["cause"] == key]
    assert found
    assert {f["kind"] for f in found} <= set(CAUSES[key].kinds)
    assert not [f["explanation"] for f in found if re.search(r"\{\w+\}", f["explanation"])]


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(
            key,
            marks=[pytest.mark.everything("13 s of a real model; its recording stays")]
            if key == "kv_cache"
            else [],
        )
        for key in sorted(BY_BEHAVIOUR)
    ],
)
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
