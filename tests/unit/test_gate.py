"""Baselines and comments: what was decided about a finding stays decided, and nothing else passes."""

from __future__ import annotations

import copy
import io
import textwrap
from pathlib import Path
from typing import Any

import pytest
from check_samples import BRANCH, LENGTH, not_viable, recompiles, viable

from cftdiag.diagnose import CAUSES
from cftdiag.gate import Baseline, judge, suppressions
from cftdiag.gate.suppressions import project_files
from cftdiag.report import accepted, html, markdown, terminal


def baseline_of(data: dict) -> Baseline:
    return Baseline.of(data["findings"])


def test_only_what_is_new_fails(tmp_path: Path) -> None:
    baseline_of(not_viable()).write(tmp_path / "known.json")
    known = Baseline.read(tmp_path / "known.json")
    gate = judge(not_viable(), baseline=known)
    assert gate.new == () and gate.exit_code("not_viable", "warning") == 0
    only_length = judge(not_viable(), baseline=baseline_of(recompiles()))
    assert [f["cause"] for f in only_length.new] == ["data_dependent_branch"]
    assert only_length.exit_code("not_viable") == 1
    assert judge(not_viable()).exit_code("not_viable") == 1
    assert judge(not_viable()).exit_code("not_viable", "never") == 0
    assert judge(not_viable(), baseline=known).exit_code("error", "never") == 3


def test_the_report_says_how_much_is_new_also_against_an_empty_baseline() -> None:
    told = judge(not_viable(), baseline=Baseline()).annotate(not_viable())
    assert accepted.gate_line(told) == f"{len(not_viable()['findings'])} new findings"
    assert accepted.gate_line(judge(viable(), baseline=Baseline()).annotate(viable())) == "0 new findings"
    assert accepted.gate_line(judge(not_viable()).annotate(not_viable())) is None


def test_a_known_finding_stays_known_where_lines_move_and_not_where_it_gets_worse() -> None:
    known, moved = baseline_of(recompiles()), recompiles()
    moved["findings"][0]["where"].update(line=300, file="/ci/model.py")
    moved["findings"][0].update(count=9, lengths=[77])
    assert judge(moved, baseline=known).new == ()
    moved["findings"][0]["severity"] = "error"
    assert len(judge(moved, baseline=known).new) == 1


def test_a_second_finding_like_a_known_one_is_new() -> None:
    twice = recompiles()
    twice["findings"].append(copy.deepcopy(twice["findings"][0]))
    assert len(judge(twice, baseline=baseline_of(recompiles())).new) == 1
    assert judge(twice, baseline=baseline_of(twice)).new == ()


def test_a_baseline_does_not_depend_on_the_order_or_the_machine(tmp_path: Path) -> None:
    one, other = not_viable(), not_viable()
    other["findings"].reverse()
    other["findings"][0]["where"]["file"] = "/elsewhere/model.py"
    baseline_of(one).write(tmp_path / "a")
    baseline_of(other).write(tmp_path / "b")
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()
    assert "/home/me" not in (tmp_path / "a").read_text()


def test_what_is_not_met_any_more_is_told() -> None:
    gate = judge(recompiles(), baseline=baseline_of(not_viable()))
    assert [e.cause for e in gate.unmet] == ["data_dependent_branch"]
    (note,) = accepted.gate_notes(gate.annotate(recompiles()))
    assert "graph_break data_dependent_branch" in note and "--write-baseline" in note


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "schema 'list'"),
        ('{"schema": "cftdiag.check/1"}', "is no cftdiag.baseline/1"),
        ('{"schema": "cftdiag.baseline/1"}', "malformed"),
        ('{"schema": "cftdiag.baseline/1", "findings": [{"cause": "x"}]}', "malformed"),
    ],
)
def test_what_is_no_baseline_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=says) as caught:
        Baseline.read(tmp_path / "x.json")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="No such file"):
        Baseline.read(tmp_path / "none.json")


# ---- comments ----

MODEL = """
class Block:
    def forward(self, mask, x):  # cftdiag: ignore[seq_len] two lengths, known
        if mask.all():  # cftdiag: ignore[data_dependent_branch, tensor.item] once a run
            x = x + 1
        # cftdiag: ignore[logging_call] told once
        log(
            x,
        )
        y = call(
            x,
            mask,  # cftdiag: ignore[unsupported_call] no way around
        )
        text = "# cftdiag: ignore[print_call] no comment"
        return y
"""


def source(tmp_path: Path, text: str = MODEL) -> Path:
    path = tmp_path / "model.py"
    path.write_text(textwrap.dedent(text))
    return path


def finding(cause: str, file: Path, line: int) -> dict[str, Any]:
    data = copy.deepcopy(BRANCH.to_dict() if cause != "seq_len" else LENGTH.to_dict())
    data.update(cause=cause)
    data["where"] |= {"file": str(file), "line": line}
    return data


@pytest.mark.parametrize(
    ("cause", "line", "taken"),
    [
        ("seq_len", 3, True),
        ("seq_len", 4, False),
        ("data_dependent_branch", 4, True),
        ("tensor.item", 4, True),
        ("data_dependent_branch", 5, False),  # the head of the if, not its body
        ("logging_call", 7, True),
        ("logging_call", 8, True),
        ("logging_call", 5, False),
        ("unsupported_call", 10, True),
        ("unsupported_call", 14, False),
        ("print_call", 14, False),  # it stands in a string
    ],
)
def test_where_a_comment_counts(cause: str, line: int, taken: bool, tmp_path: Path) -> None:
    file = source(tmp_path)
    data = viable() | {"findings": [finding(cause, file, line)], "verdict": "not_viable"}
    gate = judge(data)
    assert (gate.new == ()) is taken
    if taken:
        assert gate.annotate(data)["findings"][0]["accepted"]["reason"]


def test_a_comment_in_another_file_of_that_name_counts_for_nothing(tmp_path: Path) -> None:
    source(tmp_path)
    (tmp_path / "other").mkdir()
    elsewhere = source(tmp_path / "other", "x = 1\n" * 20)
    data = viable() | {"findings": [finding("seq_len", elsewhere, 3)], "verdict": "viable_with_recompiles"}
    assert len(judge(data, sources=[tmp_path / "model.py"]).new) == 1


def test_unused_comments_are_told_with_the_reason_why_they_do_nothing(tmp_path: Path) -> None:
    file = source(
        tmp_path,
        """
        a = 1  # cftdiag: ignore[seq_len] fine
        b = 2  # cftdiag: ignore[seq_len]
        c = 3  # cftdiag: ignore
        d = 4  # cftdiag: ignore[seqlen] misspelt
        """,
    )
    data = viable()
    gate = judge(data, sources=[file], causes=CAUSES)
    notes = accepted.gate_notes(gate.annotate(data))
    assert [note.partition(" # ")[2] for note in notes] == [
        "cftdiag: ignore[seq_len] accepts nothing in this check; remove it",
        "cftdiag: ignore[seq_len] gives no reason; write one behind the bracket",
        "cftdiag: ignore names no cause; write # cftdiag: ignore[cause] reason",
        "cftdiag: ignore[seqlen] unknown cause seqlen; did you mean seq_len?",
    ]
    assert gate.exit_code("viable", "warning") == 0


def test_without_a_reason_nothing_is_accepted(tmp_path: Path) -> None:
    file = source(tmp_path, "x = 1  # cftdiag: ignore[seq_len]\n")
    data = viable() | {"findings": [finding("seq_len", file, 1)], "verdict": "viable_with_recompiles"}
    gate = judge(data)
    assert len(gate.new) == 1 and gate.unused[0].problem is not None


def test_without_a_conclusion_no_comment_is_called_unused(tmp_path: Path) -> None:
    file = source(tmp_path)
    assert judge(viable() | {"verdict": "error"}, sources=[file]).unused == ()
    assert len(judge(viable(), sources=[file]).unused) == 4


def test_comments_of_what_the_model_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "train.py": "import cftdiag\nfrom pkg import model\nif 1:\n    try:\n        import late\n    except E:\n        import never\n",
        "late.py": "match 1:\n    case 1:\n        import json",
        "never.py": "",
        "pkg/__init__.py": "",
        "pkg/model.py": "from . import blocks\nfrom .deep.inner import f\n",
        "pkg/blocks.py": "import train\n",
        "pkg/deep/__init__.py": "",
        "pkg/deep/inner.py": "def broken(:\n",
        "unrelated.py": "",
        "site-packages/json.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {str(path.relative_to(tmp_path)) for path in project_files([tmp_path / "train.py"])}
    assert found == {
        "train.py",
        "late.py",
        "never.py",
        "pkg/__init__.py",
        "pkg/model.py",
        "pkg/blocks.py",
        "pkg/deep/__init__.py",
        "pkg/deep/inner.py",
    }
    assert suppressions(tmp_path / "pkg/deep/inner.py") == ()


def test_the_pages_show_what_was_accepted_apart(tmp_path: Path) -> None:
    data = not_viable()
    shown = judge(data, baseline=baseline_of(recompiles())).annotate(data)
    assert shown["gate"] == {"new": 1, "baseline": 1, "comment": 0, "unused": [], "unmet": []}
    page = markdown.render(shown)
    new, _, known = page.partition("## Accepted")
    assert "data_dependent_branch" in new and "seq_len" not in new.partition("## Findings")[2]
    assert "seq\\_len" in known and "known (baseline)" in known
    assert "[known (baseline)]" in html.render(shown)
    out = io.StringIO()
    terminal.show(shown, file=out)
    assert "1 new finding, 1 known (baseline)" in out.getvalue().splitlines()
    assert "gate" not in judge(viable()).annotate(viable())
