"""What other tools' logs read, and the examples of the docs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from check_samples import no_conclusion, not_viable, viable

from cftdiag.cli.main import cli, run
from cftdiag.report import ci

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A check in a repository: its findings are in train/model.py, in a library, and in no file."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "train").mkdir()
    monkeypatch.chdir(tmp_path / "train")
    for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    check = not_viable()
    check["subject"].update(name="mine.py:build", type="file")
    length, branch = check["findings"][1], check["findings"][0]
    branch["where"]["file"] = str(tmp_path / "train" / "model.py")
    length["where"]["file"] = "/v/site-packages/transformers/modeling.py"
    check["findings"] = [length, branch, {**length, "cause": "dtype", "where": {}, "severity": "info"}]
    return check


def test_a_line_a_finding_the_worst_first(data: dict[str, Any]) -> None:
    lines = ci.concise(data).splitlines()
    found = [re.match(r"([^:]+):(\d+): (error|warning|info) ([\w.]+): (.+)", line) for line in lines[:3]]
    assert [m and m.groups()[:4] for m in found] == [
        ("train/model.py", "41", "error", "data_dependent_branch"),
        ("train/mine.py", "1", "warning", "seq_len"),
        ("train/mine.py", "1", "info", "dtype"),
    ]
    assert "At transformers/modeling.py:30 in forward" in lines[1] and "At " not in lines[0]
    assert "Fix: decide it on the host and pass a bool" in lines[0]
    assert lines[3].startswith("not viable at depth joint") and len(lines) == 4


def test_what_has_no_file_begins_with_the_subject(data: dict[str, Any]) -> None:
    data["subject"].update(name="Qwen3-4B", type="config")
    assert ci.concise(data).splitlines()[1].startswith("Qwen3-4B: warning seq_len: ")


def test_annotations_are_escaped(data: dict[str, Any]) -> None:
    data["findings"][1]["explanation"] = "100 %\nof ::error:: it"
    lines = ci.github(data).splitlines()
    assert lines[0].startswith(
        "::error file=train/model.py,line=41,title=graph_break data_dependent_branch::100 %25 of ::error::"
    )
    assert lines[1].startswith("::warning file=train/mine.py,line=1,title=recompile seq_len::")
    assert lines[2].startswith("::notice ")
    data["findings"][1]["where"]["file"] = data["findings"][1]["where"]["file"].replace("model", "a,b:c")
    assert "file=train/a%2Cb%3Ac.py," in ci.github(data)


def test_no_conclusion_is_an_annotation() -> None:
    assert "::error title=no conclusion::the fullgraph pass did not end" in ci.github(no_conclusion())
    assert ci.github(viable()).startswith("viable at depth")


def test_code_quality(data: dict[str, Any]) -> None:
    issues = json.loads(ci.gitlab(data))
    assert [(i["check_name"], i["severity"], i["location"]["path"]) for i in issues] == [
        ("data_dependent_branch", "critical", "train/model.py"),
        ("seq_len", "major", "train/mine.py"),
        ("dtype", "info", "train/mine.py"),
    ]
    assert issues[0]["location"]["lines"] == {"begin": 41}
    assert len({i["fingerprint"] for i in issues}) == 3
    assert json.loads(ci.gitlab(viable())) == []


@pytest.mark.parametrize("form", ci.FORMATS)
def test_what_was_accepted_is_left_out(form: str, data: dict[str, Any]) -> None:
    data["findings"][1]["accepted"] = {"by": "baseline", "reason": None}
    text = ci.FORMATS[form](data)
    assert "data_dependent_branch" not in text and "seq_len" in text


def test_the_verb_prints_each_form(
    data: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "check.json"
    saved.write_text(json.dumps(data))
    for form, render in ci.FORMATS.items():
        assert run(["report", str(saved), "--output-format", form]) == 0
        assert capsys.readouterr().out == render(data) + "\n"
    assert run(["report", str(saved), "--output-format", "github", "--markdown", "-"]) == 2
    assert run(["check", "--model", "m", "--output-format", "github", "--json", "-"]) == 2


# ---- the examples of the docs ----


def _examples() -> list[str]:
    text = (ROOT / "docs" / "gates.md").read_text() + (ROOT / "README.md").read_text()
    blocks = re.findall(r"```(?:yaml|console|sh)\n(.*?)```", text, flags=re.S)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    found = [
        m[1] for line in lines if (m := re.match(r"(?:\$ |- run: |entry: |run: |- )?(cftdiag \S.*)", line))
    ]
    return [re.sub(r"\s+#.*|\s+>.*", "", line) for line in found]


@pytest.mark.parametrize("line", dict.fromkeys(_examples()))
def test_the_commands_of_the_docs_are_taken(line: str) -> None:
    words = [
        re.sub(r"\$\{\{.*?\}\}|\$\w+", "x", word) for word in shlex.split(re.sub(r"\$\{\{.*?\}\}", "x", line))
    ]
    verb = cli.get_command(click.Context(cli), words[1])
    assert verb is not None
    verb.make_context(words[1], words[2:], resilient_parsing=False)


def test_the_yaml_of_the_docs_is_yaml() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "gates.md").read_text(), flags=re.S)
    documents = [yaml.safe_load(block) for block in blocks]
    assert len(documents) >= 4 and all(documents)
