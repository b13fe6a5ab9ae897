"""What a name or a saved file holds never steers the reader's terminal."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import monitor_samples as samples
import pytest
from check_samples import forecasted, not_viable

from cftdiag.cli.main import run
from cftdiag.escape import STEERING, escaped
from cftdiag.report import html, junit, markdown, tables, terminal, watch_screen
from cftdiag.report.console import console_for, print_line, print_prose, table_lines

#: A title, a link, a cursor movement, C1's CSI, a carriage return, a right-to-left override, half a pair.
HOSTILE = "\x1b]0;owned\x07\x1b]8;;http://x\x1b\\a\x1b[2J\x9b1m\rb\u202ec\ud800"
LINK = "[press](http://evil.example) ![x](y)"


def _everywhere(value: Any) -> Any:
    """The value with every string in it made hostile, but for those that a renderer decides by."""
    if isinstance(value, str):
        return f"{value}{HOSTILE}{LINK}"
    if isinstance(value, (list, tuple)):
        return [_everywhere(item) for item in value]
    if isinstance(value, dict):
        fixed = ("schema", "verdict", "severity", "kind", "action", "depth", "id", "applicability", "change")
        return {k: v if k in fixed else _everywhere(v) for k, v in value.items()}
    return value


def _hostile() -> dict[str, Any]:
    data = forecasted()
    data["findings"] = not_viable()["findings"]
    data["change_first"] = [{"edit": "x = 1", "before": {"compiles": 2}, "after": {"compiles": 1}}]
    data["diffs"] = {"x = 1": "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n"}
    data = json.loads(json.dumps(data))
    points = data["forecast"]["points"]
    data = _everywhere(data)
    data["forecast"]["points"] = points
    return data


def _harmless(text: str) -> None:
    left = STEERING.findall(text.replace("\n", ""))
    assert left == []


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_terminal_report() -> None:
    piped, tty = io.StringIO(), _Terminal()
    terminal.show(_hostile(), file=piped)
    _harmless(piped.getvalue())
    assert "\\x1b]0;owned" in piped.getvalue() and "\\u202ec\\ud800" in piped.getvalue()
    os.environ["NO_COLOR"] = "1"
    try:
        terminal.show(_hostile(), file=tty, width=80)
    finally:
        del os.environ["NO_COLOR"]
    _harmless(tty.getvalue())


@pytest.mark.parametrize("form", [markdown, html, junit])
def test_the_pages(form: Any) -> None:
    _harmless(form.render(_hostile()))


def test_markdown_has_no_link_of_a_name() -> None:
    outside_code = "".join(markdown.render(_hostile()).split("`")[::2])
    assert "](" not in outside_code.replace("\\]", "")


def test_the_live_view(tmp_path: Path) -> None:
    from cftdiag.monitor.run_state import View

    events = [samples.head(0, 1), samples.event("recompile", step=5, block=f"layers.0{HOSTILE}")]
    view = View(samples.write_run(tmp_path / "run", {0: events}))
    view.refresh()
    out = io.StringIO()
    watch_screen.show(view, file=out, now=1e9)
    assert "\\x1b]0;owned" in out.getvalue()
    _harmless(out.getvalue())


def test_an_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (
        ["models", HOSTILE],
        ["explain", HOSTILE],
        ["check", "--model", HOSTILE],
        ["report", HOSTILE],
    ):
        assert run(args) == 2
        _harmless(capsys.readouterr().err)


def test_what_is_shown_says_what_was_there() -> None:
    assert escaped("a\tb\x1b\x85\ud800") == "a\tb\\x1b\\x85\\ud800"
    [line] = table_lines([["a\x1b", "b"]])
    assert line.plain == "  a\\x1b  b"


@pytest.mark.parametrize("name", ["PYTHONIOENCODING", "LC_ALL"])
def test_letters_that_the_locale_has_not_are_no_error(name: str, tmp_path: Path) -> None:
    data = not_viable()
    data["subject"]["name"] = "mod\u00e8le-\u6a21"
    path = tmp_path / "check.json"
    path.write_text(json.dumps(data))
    env = {
        **os.environ,
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "LC_ALL": "C",
        "PYTHONIOENCODING": "ascii",
    }
    done = subprocess.run(
        [sys.executable, "-m", "cftdiag", "report", str(path)], env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mod\\xe8le-\\u6a21  ")


@pytest.mark.parametrize(
    ("redirect", "code", "says"),
    [(">/dev/full", 3, "error: cannot write the output: No space left on device; write it elsewhere\n"), (">&-", 0, "")],
)  # fmt: skip
def test_an_output_that_takes_nothing_is_one_line(redirect: str, code: int, says: str) -> None:
    for verb in ("models", "models --json", "explain"):
        done = subprocess.run(
            f"{sys.executable} -m cftdiag {verb} {redirect}", shell=True, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (code, says)


def test_no_color_leaves_no_style_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    out = _Terminal()
    terminal.show(not_viable(), file=out, width=120)
    assert "\x1b" not in out.getvalue()


def _narrow(monkeypatch: pytest.MonkeyPatch, width: int = 80) -> tuple[_Terminal, Any]:
    monkeypatch.setenv("NO_COLOR", "1")
    out = _Terminal()
    return out, console_for(out, width)


def test_a_terminal_gets_long_lines_with_a_hanging_indent(monkeypatch: pytest.MonkeyPatch) -> None:
    out, console = _narrow(monkeypatch, 40)
    print_line(console, "    where  transformers/models/qwen3/modeling_qwen3.py:66 in forward: x")
    assert out.getvalue() == (
        "    where  transformers/models/\n        qwen3/modeling_qwen3.py:66 in\n        forward: x\n"
    )
    wide = io.StringIO()
    print_line(console_for(wide, 40), "x" * 90)
    print_prose(console_for(wide, 40), "two\nlines", indent=2)
    assert wide.getvalue() == "x" * 90 + "\n  two\n  lines\n"


def test_eighty_columns_hold_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from cftdiag import catalogue

    out, _ = _narrow(monkeypatch)
    for data in (not_viable(), forecasted()):
        data["findings"][0]["where"]["file"] = (
            "/home/someone/a/rather/deep/folder/of/a/project/training/model.py"
        )
        terminal.show(data, file=out, width=80)
    tables.show_models(catalogue.search(None), file=out, width=80)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    header = next(line for line in lines if line.startswith("name"))
    assert header.split() == ["name", "parameters", "layers", "architecture", "hub", "id", "verified"]
