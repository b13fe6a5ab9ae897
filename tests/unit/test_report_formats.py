"""Markdown, HTML, SARIF and JUnit: well-formed, complete, and safe for text that looks like markup."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from check_samples import forecasted, no_conclusion, not_viable, recompiles, viable

from cftdiag.cli.main import run
from cftdiag.diagnose import CAUSES
from cftdiag.report import advice, html, junit, markdown, page_parts, sarif, terminal, wording

ALL = [viable, recompiles, not_viable, no_conclusion]
HOSTILE = "<script>alert('&')</script> a|b `c` __d__ \x00\x1b"


def _hostile() -> dict:
    data = not_viable()
    data["subject"]["name"] = HOSTILE
    data["undetermined"] = [HOSTILE]
    data["findings"][0].update(explanation=HOSTILE, guard=HOSTILE)
    data["findings"][0]["where"]["code"] = HOSTILE
    data["blocks"][0]["class"] = HOSTILE
    return data


class _Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loads += [
            f"{name}={value}"
            for name, value in attrs
            if name == "src" or (name == "href" and not str(value).startswith("#"))
        ]
        self.ids += [str(value) for name, value in attrs if name == "id"]
        self.links += [str(value)[1:] for name, value in attrs if name == "href"]
        if tag not in ("meta", "br", "link", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("make", [*ALL, _hostile], ids=lambda f: f.__name__)
def test_html_is_balanced_and_needs_nothing_from_elsewhere(make) -> None:
    data = make()
    page = html.render(data)
    parser = _Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert parser.seen.count("script") == 2, "a name became a script"
    assert parser.loads == []
    assert len(parser.ids) == len(set(parser.ids))
    assert set(parser.links) <= set(parser.ids)
    assert page.count("<article") == len(data["findings"])
    assert page.count('title="') == len(data["blocks"])


def test_html_shows_what_each_graph_asks_of_a_call() -> None:
    data = not_viable()
    data["compiles"][0]["guards"] = ["x: float32 [2, any, 8]", "2 <= x.size()[1]"]
    page = html.render(data)
    assert "<code>2 &lt;= x.size()[1]</code>" in page and ": 2 guards</summary>" in page
    for compile_ in data["compiles"]:
        compile_.pop("guards", None)
    assert "asks of a call" not in html.render(data), "a check of before has none"


def test_html_says_what_the_terminal_says() -> None:
    page = html.render(not_viable())
    for text in (
        "not viable at depth joint",
        "data_dependent_branch",
        "model.py:41",
        "verified: recompiles 2 -&gt; 0",
        "an even routing was assumed",
    ):
        assert text in page


def test_a_forecast_is_on_every_page() -> None:
    page, text = html.render(forecasted()), markdown.render(forecasted())
    for told in (
        "with every regime warmed before step 0: 0 compiles left in training",
        "pad to buckets of 384, 448: 1 graph, 19.3% more tokens",
    ):
        assert told in page and told in text
    assert "&lt;lens&gt;.txt: 60 samples" in page and "<lens>" not in page
    assert "<svg" in page and "batch size B (rows)" in page
    assert "| r2 | 8x | `B >= 2, B*S > 4096/3, padded` | warm with 4 x 387 |" in text
    assert "| 5 | 4 | 387 | 2.5 | inductor\\_size\\_regime |" in text
    assert "Regimes" not in html.render(viable()) and "Regimes" not in markdown.render(viable())


def test_markdown_of_a_check() -> None:
    text = markdown.render(not_viable())
    lines = text.splitlines()
    assert lines[0] == "# cftdiag check: Qwen3-4B"
    assert lines[2].startswith("**not viable at depth joint")
    assert "| 2 | `Qwen3DecoderLayer` | `model.layers.0-1` | 4 | no | 1 | 2 |" in lines
    assert "### error: graph_break `data_dependent_branch`" in lines
    assert "- guard: `tensor 'x' size mismatch at index 1. expected 512, actual 640`" in lines
    assert "1. compile with dynamic=True (verified: recompiles 2 -> 0)" in lines
    assert "2. pad to one length (by hand, unsafe)" in lines


def test_markdown_tables_keep_their_columns() -> None:
    text = markdown.render(_hostile())
    outside_code = re.sub(r"``.*?``(?!`)", "", text)
    assert re.search(r"(?<!\\)<script", outside_code) is None
    table = [line for line in text.splitlines() if line.startswith("|")]
    for line in table:
        assert line.replace("\\|", "").count("|") in (7, 8)


@pytest.mark.parametrize("make", [*ALL, _hostile], ids=lambda f: f.__name__)
def test_sarif_results_match_the_findings(make) -> None:
    data = make()
    document = json.loads(sarif.render(data))
    assert document["version"] == "2.1.0"
    [run_] = document["runs"]
    rules = [rule["id"] for rule in run_["tool"]["driver"]["rules"]]
    assert len(rules) == len(set(rules))
    assert len(run_["results"]) == len(data["findings"])
    for result, finding in zip(run_["results"], data["findings"], strict=True):
        assert rules[result["ruleIndex"]] == result["ruleId"] == f"{finding['kind']}/{finding['cause']}"
        assert result["level"] == finding["severity"]
        [location] = result["locations"]
        assert location["physicalLocation"]["region"]["startLine"] == finding["where"]["line"]
    assert run_["invocations"] == [{"executionSuccessful": data["verdict"] != "error"}]


def test_sarif_describes_its_rules_and_says_what_was_accepted() -> None:
    data = not_viable()
    data["findings"][0]["accepted"] = {"by": "comment", "reason": "once a run"}
    data["findings"][1]["accepted"] = {"by": "baseline", "reason": None}
    run_ = json.loads(sarif.render(data))["runs"][0]
    for rule in run_["tool"]["driver"]["rules"]:
        cause = CAUSES[rule["id"].partition("/")[2]]
        assert rule["shortDescription"]["text"] == cause.title
        assert cause.fix in rule["help"]["text"] and cause.why in rule["help"]["markdown"]
        assert rule["helpUri"].startswith("https://")
    assert [r["suppressions"][0] for r in run_["results"]] == [
        {"kind": "inSource", "justification": "once a run"},
        {"kind": "external"},
    ]
    prints = [r["partialFingerprints"]["cftdiag/v2"] for r in run_["results"]]
    moved = not_viable()
    moved["findings"][0]["where"]["line"] += 5
    again = json.loads(sarif.render(moved))["runs"][0]["results"]
    assert [r["partialFingerprints"]["cftdiag/v2"] for r in again] == prints


def test_sarif_shows_a_librarys_line_at_the_checked_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "train").mkdir()
    monkeypatch.chdir(tmp_path / "train")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    data = not_viable()
    data["subject"].update(name="mine.py:build", type="file")
    library = "/v/lib/python3.11/site-packages/transformers/modeling.py"
    data["findings"][0]["where"]["file"] = library
    result = json.loads(sarif.render(data))["runs"][0]["results"][0]
    [location], [related] = result["locations"], result["relatedLocations"]
    assert location["physicalLocation"]["artifactLocation"] == {
        "uri": "train/mine.py",
        "uriBaseId": "%SRCROOT%",
    }
    assert related["physicalLocation"]["artifactLocation"]["uri"] == f"file://{library}"
    assert related["physicalLocation"]["region"]["startLine"] == 41


def test_sarif_paths_are_relative_inside_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = not_viable()
    data["findings"][0]["where"]["file"] = str(tmp_path / "src" / "model.py")
    data["findings"][1]["where"].update(file=None, line=None)
    results = json.loads(sarif.render(data))["runs"][0]["results"]
    assert results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "src/model.py"
    assert "locations" not in results[1]


@pytest.mark.parametrize(
    ("make", "failures", "errors"),
    [(viable, 0, 0), (recompiles, 0, 0), (not_viable, 37, 0), (no_conclusion, 0, 1), (_hostile, 37, 0)],
)
def test_junit_has_a_case_a_block_and_one_for_the_verdict(make, failures: int, errors: int) -> None:
    data = make()
    root = ElementTree.fromstring(junit.render(data).encode())
    cases = root.findall("testsuite/testcase")
    assert len(cases) == len(data["blocks"]) + 1
    assert len(root.findall(".//failure")) == failures == int(root.attrib["failures"])
    assert len(root.findall(".//error")) == errors == int(root.attrib["errors"])


def test_junit_tells_each_finding_in_full_once_and_fails_for_no_accepted_one() -> None:
    data = not_viable()
    text = junit.render(data)
    assert text.count("why: A Python branch on a value") == 1
    cases = ElementTree.fromstring(text.encode()).findall("testsuite/testcase")
    assert (
        cases[5].findtext("failure") or ""
    ) == "graph_break data_dependent_branch: as told at model.layers.0"
    assert "as told at model.layers.0" in (cases[-1].findtext("failure") or "")
    data["findings"][0]["blocks"] = []  # of no block: the verdict's case alone tells it
    assert junit.render(data).count("why: A Python branch on a value") == 1
    data["findings"][0] |= {"blocks": ["model.layers.*"], "accepted": {"by": "comment", "reason": "rare"}}
    root = ElementTree.fromstring(junit.render(data).encode())
    assert root.find(".//failure") is None and "(accepted: rare)" in junit.render(data)


def test_a_warning_fails_no_case() -> None:
    root = ElementTree.fromstring(junit.render(recompiles()).encode())
    assert "seq_len" in (root.find(".//testcase/system-out").text or "")


def test_the_verb_writes_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "check.json"
    source.write_text(json.dumps(not_viable()))
    forms = {
        "--html": "out.html",
        "--markdown": "out.md",
        "--sarif": "out.sarif",
        "--junit": "out.xml",
        "--json": "out.json",
    }
    args = ["report", str(source)]
    for flag, name in forms.items():
        args += [flag, str(tmp_path / name)]
    assert run(args) == 0
    captured = capsys.readouterr()
    assert "not viable" in captured.out
    assert sorted(captured.err.splitlines()) == sorted(f"wrote {tmp_path / name}" for name in forms.values())
    for name in forms.values():
        assert (tmp_path / name).stat().st_size > 500
    assert captured.out == wording.verdict_line(not_viable()) + "\n"
    assert run([*args, "-q"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["report", str(source), "--markdown", "-"]) == 0
    assert capsys.readouterr().out == markdown.render(not_viable())


def test_two_forms_on_stdout_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "check.json"
    source.write_text(json.dumps(viable()))
    assert run(["report", str(source), "--markdown", "-", "--json", "-"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_a_hostile_bound_is_drawn_as_it_is() -> None:
    data = forecasted()
    data["forecast"]["regimes"][0]["bounds"] = ["$x^$ <script>"]
    page = html.render(data)
    assert "r1: $x^$ &lt;script&gt;" in page and page.count("<script>") == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"steps": None},
        {"points": ["r1"]},
        {"regimes": [{"id": "r1"}]},
        {"seconds": "long"},
        {"suggestions": [{}]},
    ],
)
def test_a_malformed_forecast_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: dict
) -> None:
    data = forecasted()
    data["forecast"] |= broken
    source = tmp_path / "check.json"
    source.write_text(json.dumps(data))
    assert run(["report", str(source)]) == 2
    assert capsys.readouterr().err.endswith(
        "'forecast' is malformed; write the file again with cftdiag check --json\n"
    )


CHANGE_FIRST = [
    {
        "edit": "torch._inductor.config.triton.mix_order_reduction = False",
        "before": {"compiles": 4, "findings": 2},
        "after": {"compiles": 2, "findings": 1},
    },
    {
        "edit": "block.compile(dynamic=True)\ntorch._dynamo.mark_dynamic(x, 1)",
        "before": {"compiles": 2, "findings": 1},
        "after": {"compiles": 1, "findings": 1},
    },
]


def test_what_to_change_first_is_shown_everywhere() -> None:
    data = {**recompiles(), "change_first": CHANGE_FIRST}
    out = io.StringIO()
    terminal.show(data, file=out, width=120)
    edit = "block.compile(dynamic=True); torch._dynamo.mark_dynamic(x, 1)"
    assert (
        "Change first (proved together)\n"
        "  1. torch._inductor.config.triton.mix_order_reduction = False [compiles 4 -> 2, findings 2 -> 1; proved]\n"
        f"  2. {edit} [compiles 2 -> 1; proved]\n"
    ) in out.getvalue()
    page = markdown.render(data)
    assert f"2. `{edit}` (compiles 2 -> 1; proved)" in page and "## Change first" in page
    assert '<h2 id="change-first">' in html.render(data) and edit in html.render(data)
    assert "Change first" not in markdown.render(viable()) + html.render(viable())


def test_a_step_of_diagnosis_is_never_shown_as_the_fix() -> None:
    learn = {"summary": "run with backend eager", "applicability": "diagnosis", "verified": None}
    words = {"summary": "drop the hook", "applicability": "by_hand", "verified": None}
    assert wording.best_remedy({"remedies": [learn, words]}) is words
    assert wording.best_remedy({"remedies": [learn]}) is None
    assert advice.mark(learn) == "to learn more, no fix"


def test_remedies_by_hand_under_other_conditions_are_shown_beside_the_first() -> None:
    batch = {"summary": "Where it depends on the batch: decide it before.", "verified": None}
    values = {"summary": "Where it depends on activations: torch.where.", "verified": None}
    other = {"summary": "Another attention.", "change": {"attn": "sdpa"}, "verified": None}
    assert advice.also_shown({"remedies": [batch, other, values]}) == [values]
    proved = {**other, "verified": True}
    assert advice.also_shown({"remedies": [batch, values, proved]}) == [proved]
    assert advice.also_shown({"remedies": [other, batch, values]}) == []


def test_lines_of_source_stand_in_the_page_only_as_they_were_checked(tmp_path: Path) -> None:
    program, secret = tmp_path / "model.py", tmp_path / "key"
    program.write_text("def f(x):\n    y = 1\n    if x.all():  # <b>\n        y = 2\n    return y\n")
    secret.write_text("hidden\n")
    data = not_viable()
    place = data["findings"][0]["where"]
    place.update(file=str(program), line=3, code="if x.all():  # <b>")
    page = html.render(data)
    assert '<span class="here"><b>3</b>    if x.all():  # &lt;b&gt;</span>' in page
    place.update(line=2)
    assert 'class="here"' not in html.render(data)
    place.update(file=str(secret), line=1, code="hidden")
    assert page_parts.source(place) == []


def test_backticks_become_code_and_nothing_else_does() -> None:
    assert page_parts.prose("use `a < b` and ``c`d``, <i>") == (
        "use <code>a &lt; b</code> and <code>c`d</code>, &lt;i&gt;"
    )
    assert page_parts.page_text("One\ntwo.\n\n```python\nx < 1\n\ny\n```\nEnd.") == (
        "<p>One two.</p><pre>x &lt; 1\n\ny</pre><p>End.</p>"
    )


def test_the_timeline_has_a_lane_a_rank_and_a_bar_a_step() -> None:
    base = viable()["compiles"][0]
    rows = [
        {**base, "rank": r, "step": s, "cause": None if s == 1 else "seq_len"} for r in (0, 1) for s in (1, 5)
    ]
    first, second = page_parts.timeline(rows)
    assert (first["label"], second["label"], first["first"], first["last"]) == ("rank 0", "rank 1", 1, 5)
    assert [bar["words"] for bar in first["bars"]] == [
        "step 1: 1 x first; 3.2 s",
        "step 5: 1 x seq_len; 3.2 s",
    ]
    assert [bar["again"] for bar in first["bars"]] == [False, True]
    many = [{**base, "step": s} for s in range(1, 10_001)]
    [lane] = page_parts.timeline(many)
    assert len(lane["bars"]) <= page_parts.BINS
    assert page_parts.timeline(rows[:1]) == []


def test_blocks_lead_to_their_findings_and_causes_to_what_they_mean() -> None:
    page = html.render(not_viable())
    assert '<a href="#finding-1">0</a>' in page
    assert 'href="#cause-seq_len"' in page and 'id="cause-seq_len"' in page
