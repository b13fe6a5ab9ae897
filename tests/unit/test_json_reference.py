"""The reference of the JSON documents is what the types say, and the types are what the documents have."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import monitor_samples as samples
import pytest
from check_samples import recompiles

from cftdiag import artifacts, compare
from cftdiag.check.report import BlockResult, CheckReport
from cftdiag.compare.change import Change, Diff
from cftdiag.details import CacheDetail, CompileDetail, MissDetail
from cftdiag.events import Event
from cftdiag.findings import Finding, Remedy, Where
from tests import json_reference
from tests.json_reference import keys
from tests.recordings import corpus

PAGE = Path(__file__).resolve().parents[2] / "docs" / "json.md"


def test_the_page_is_written_from_the_types() -> None:
    assert PAGE.read_text() == json_reference.page(), "run make docs"


def test_every_link_of_the_page_is_there() -> None:
    text = PAGE.read_text()
    anchors = {re.sub(r"[^\w]", "", title).lower() for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    assert set(re.findall(r"\(#(\w+)\)", text)) <= anchors


def test_a_check_has_the_keys_of_its_types() -> None:
    check = corpus.replay(corpus.recordings()[0]).to_dict()
    assert set(check) - {"schema"} == set(keys(CheckReport)) - {"script", "coverage", "payoff"}
    assert list(check["blocks"][0]) == keys(BlockResult)
    [finding, *_] = check["findings"]
    assert list(finding) == ["schema", *keys(Finding)] and list(finding["where"]) == keys(Where)
    assert list(finding["remedies"][0]) == keys(Remedy)


@pytest.mark.parametrize(
    ("event", "detail"),
    [
        (samples.event("recompile"), MissDetail),
        (samples.compiled(), CompileDetail),
        (samples.event("cache", detail={"cache": "fx_graph", "outcome": "hit"}), CacheDetail),
    ],
)
def test_an_event_has_the_keys_of_its_types(event: Event, detail: type) -> None:
    data = event.to_dict()
    assert set(data) - {"schema"} <= set(keys(Event)) and data["detail"].keys() <= set(keys(detail))
    assert set(keys(Event)) - set(data) <= {"reasons", "guard", "stack", "seconds", "payloads"}


def test_a_diff_has_the_keys_of_its_types() -> None:
    after = recompiles()
    after["findings"][0]["count"] = 9
    data = compare.diff(recompiles(), after).to_dict()
    assert set(data) == {"schema", *keys(Diff)} and set(data["changes"][0]) == set(keys(Change))


def test_a_head_of_artifacts_has_the_keys_of_its_type(tmp_path: Path) -> None:
    file = tmp_path / "file"
    artifacts.write(file, b"x", {"inductor": 1}, {})
    assert list(dataclasses.asdict(artifacts.read_head(file))) == keys(artifacts.Head)
