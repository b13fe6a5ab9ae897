"""``cftdiag report --tlparse DIR``: tlparse's own pages, and our compiles linked to them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cftdiag.cli.main import run
from cftdiag.monitor import tlparse_pages
from tests.unit import monitor_samples as samples

RECORDED = Path(__file__).resolve().parents[1] / "recordings"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    [newest] = sorted(RECORDED.glob("*/lengths.log"))[-1:]
    (tmp_path / "trace").mkdir()
    shutil.copy(newest, tmp_path / "trace" / "dedicated_log_torch_trace_rank_0_abc.log")
    return tmp_path / "trace"


def test_each_compile_is_linked_to_its_page(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html = tmp_path / "report.html"
    arguments = ["report", str(trace), "--tlparse", str(tmp_path / "pages"), "--html", str(html)]
    assert run([*arguments, "--json", str(tmp_path / "run.json")]) == 0
    rows = json.loads((tmp_path / "run.json").read_text())["compiles"]
    assert {r["compile_id"] for r in rows} >= {"0/0", "0/1"}
    for row in rows:
        frame, number = row["compile_id"].split("/")
        page = Path(row["tlparse"])
        assert page.is_file() and page.parent.name.startswith(f"-_{frame}_{number}_")
        assert page.name.startswith("compilation_metrics")
    [index] = [line for line in capsys.readouterr().err.splitlines() if line.endswith("index.html")]
    assert Path(index.removeprefix("wrote ")).is_file()
    text = html.read_text()
    assert all(f'<a href="{Path(row["tlparse"]).as_uri()}">' in text for row in rows)
    assert run(arguments) == 2, "pages of another report are not written over"
    assert "is there already; give another directory" in capsys.readouterr().err


def test_the_last_attempt_of_a_compile_is_its_page(tmp_path: Path) -> None:
    def entry(url: str) -> dict[str, object]:
        return {"artifacts": [{"url": "x/graph.txt"}, {"url": url}]}

    listed = {
        "[0/0]": entry("a/compilation_metrics_1.html"), "[0/0_10]": entry("c/compilation_metrics_3.html"),
        "[0/0_2]": entry("b/compilation_metrics_2.html"), "[-/-]": entry("d/compilation_metrics_4.html"), "[1/0]": entry("e/other.html"),
    }  # fmt: skip
    (tmp_path / "compile_directory.json").write_text(json.dumps(listed))
    assert tlparse_pages._compiles(tmp_path) == {"0/0": tmp_path / "c/compilation_metrics_3.html"}


def test_a_run_without_a_trace_and_a_machine_without_tlparse_are_one_line(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = samples.write_run(tmp_path / "run", {})
    assert run(["report", str(plain), "--tlparse", str(tmp_path / "out")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "has no raw trace for tlparse; record one with `cftdiag run --trace`" in line
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert run(["report", str(trace), "--tlparse", str(tmp_path / "out")]) == 3
    [line] = capsys.readouterr().err.splitlines()
    assert line == "error: tlparse is not installed; pip install tlparse"
    assert not (tmp_path / "out").exists()
