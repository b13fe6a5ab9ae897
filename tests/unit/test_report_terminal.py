"""The terminal report: exact text at a fixed width, plain when piped, one line with -q."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import threading
from pathlib import Path

import pytest
from check_samples import no_conclusion, not_viable, recompiles, viable

from cftdiag.cli.main import run
from cftdiag.report import advice, terminal, wording
from cftdiag.report.status_line import progress


def _shown(data: dict, **options: object) -> str:
    out = io.StringIO()
    terminal.show(data, file=out, **options)
    return out.getvalue()


#: What depth joint cannot see.
MORE = "; --target h200 adds Inductor's guards and kernels"

VIABLE = (
    """\
Qwen3-4B  Qwen3ForCausalLM, 4.02 B parameters, no weights
  attention sdpa, bfloat16, scope block, batch 1, lengths 512 640 777 1024
  compiled with fullgraph=True, dynamic=True
  depth joint (without Inductor's guards), torch 2.13.0, transformers 5.24.0, triton 3.9.0, python 3.11.7

Blocks
  36 x Qwen3DecoderLayer  model.layers.0-35  1 graph  fullgraph yes

Compiles
  id   block           step  length  seconds  cause
  0/0  model.layers.0     1     512      3.2  first

no collect pass: every block was captured whole
viable at depth joint (without Inductor's guards): 36 of 36 blocks fullgraph, 1 compile [15.2 s, peak 0.66 GB]"""
    + MORE
    + "\n"
)


def test_viable() -> None:
    assert _shown(viable(), width=120) == VIABLE


FINDINGS = """\
Findings
  error  graph_break  data_dependent_branch  in model.layers.*, 36 times
    where  /home/me/train/model.py:41 in forward: if mask.all():
    why    A Python branch on a value of a tensor ends the graph: Dynamo cannot know which way
           it goes.
    fix    decide it on the host and pass a bool [by hand]
    more   1 other remedy: cftdiag explain data_dependent_branch

  warning  recompile  seq_len  in 2 blocks: model.layers.0-1, 2 times, at lengths 640,777, at steps 2-3
    where  /home/me/train/model.py:30 in forward: h = self.attn(x)
    why    The graph was compiled for one length.
    guard  tensor 'x' size mismatch at index 1. expected 512, actual 640
    fix    compile with dynamic=True [verified: recompiles 2 -> 0]
    edit   block.compile(dynamic=True)
    more   1 other remedy: cftdiag explain seq_len

Undetermined
  - which experts get tokens depends on activations; an even routing was assumed
"""


def test_findings_say_where_why_and_fix() -> None:
    text = _shown(not_viable(), width=95)
    assert FINDINGS in text
    assert (
        "  2 x Qwen3DecoderLayer   model.layers.0-1   4 graphs  fullgraph no  1 graph break  2 recompiles\n"
        in text
    )
    assert "  34 x Qwen3DecoderLayer  model.layers.2-35  2 graphs  fullgraph no  1 graph break\n" in text
    assert "... 4 more" in text


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            viable(),
            "viable at depth joint (without Inductor's guards): 36 of 36 blocks fullgraph, 1 compile [15.2 s, peak 0.66 GB]"
            + MORE,
        ),
        (
            recompiles(),
            "viable with recompiles at depth joint (without Inductor's guards): 2 of 2 blocks fullgraph, 1 compile, 1 warning [15.2 s, peak 0.66 GB]"
            + MORE,
        ),
        (
            not_viable(),
            "not viable at depth joint (without Inductor's guards): 0 of 36 blocks fullgraph, 20 compiles, 1 error, 1 warning [15.2 s, peak 0.66 GB]"
            + MORE,
        ),
        (
            no_conclusion(),
            "no conclusion at depth joint (without Inductor's guards): 0 compiles [15.2 s, peak 0.66 GB]",
        ),
        (
            {**viable(), "depth": "codegen", "target": "h200"},
            "viable at depth codegen for h200, predicted: 36 of 36 blocks fullgraph, 1 compile [15.2 s, peak 0.66 GB]",
        ),
    ],
)
def test_quiet_is_the_verdict_line_alone(data: dict, line: str) -> None:
    assert _shown(data, quiet=True) == line + "\n"


def test_no_conclusion_says_why() -> None:
    assert "the fullgraph pass did not end: stopped after 600 s" in _shown(no_conclusion())


def test_piped_output_has_no_escapes_and_cuts_no_line() -> None:
    data = not_viable()
    data["findings"][0]["where"]["code"] = "x" * 500
    text = _shown(data)
    assert "\x1b" not in text
    assert "x" * 500 in text


def test_the_last_lines_say_what_to_change_first() -> None:
    data = not_viable()
    second = data["findings"][1]
    second["remedies"] = (
        *second["remedies"],
        {"summary": "pass the boundaries", "change": {"flash_varlen": True}, "edit": "--flash-varlen", "verified": True,
         "before": {"count": 2}, "after": {"count": 0}}
    )  # fmt: skip
    text = _shown(data, width=120)
    assert "    or     pass the boundaries [verified: recompiles 2 -> 0]\n    edit   --flash-varlen\n" in text
    assert text.endswith(
        "\nChange first\n"
        "  1. decide it on the host and pass a bool [by hand, not proved]\n"
        "     at  /home/me/train/model.py:41 in forward: if mask.all():\n"
        "  2. block.compile(dynamic=True) [recompiles 2 -> 0; proved]\n"
    )
    data["change_first"] = [{"edit": "--flash-varlen", "before": {"compiles": 11}, "after": {"compiles": 1}}]
    data["diffs"] = {
        "--flash-varlen": "--- a/t.py\n+++ b/t.py\n@@ -1,2 +1,2 @@\n import torch\n-old()\n+new()\n"
    }
    assert (
        "  1. --flash-varlen [recompiles 2 -> 0, compiles 11 -> 1; proved]\n"
        "     +++ b/t.py\n     @@ -1,2 +1,2 @@\n     -old()\n     +new()\n"
        "  2. decide it on the host"
    ) in _shown(data, width=120)


def test_the_command_that_writes_the_patch_names_the_saved_check() -> None:
    def asked(*arguments: str) -> str:
        return advice.patch_hint({"asked": {"arguments": ["check", *arguments]}})

    assert asked("--json", "my check.json", "--", "python", "t.py").startswith("cftdiag fix 'my check.json' ")
    assert asked("--json=c.json").startswith("cftdiag fix c.json ")
    for arguments in ((), ("--json", "-"), ("--", "python", "t.py", "--json", "x")):
        assert asked(*arguments).startswith("save the check with --json")
    assert advice.patch_hint({}).startswith("save the check")


def test_a_depth_says_what_it_cannot_see() -> None:
    assert wording.unseen({**viable(), "depth": "trace"}).startswith("--depth joint adds")
    assert wording.unseen({**viable(), "depth": "codegen", "target": "h200"}) == ""
    assert wording.unseen(no_conclusion()) == ""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours_unless_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = _Terminal(), _Terminal()
    terminal.show(not_viable(), file=coloured, width=120)
    assert "\x1b[" in coloured.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.show(not_viable(), file=plain, width=120)
    assert "\x1b[3" not in plain.getvalue()


def test_markup_in_names_is_text() -> None:
    data = viable()
    data["subject"]["name"] = "[bold]model[/bold] :smile:"
    data["undetermined"] = ["index [0] of [/] is unknown"]
    text = _shown(data)
    assert "[bold]model[/bold] :smile:" in text
    assert "index [0] of [/] is unknown" in text


def test_a_model_of_ones_own_shows_no_options_that_did_not_apply() -> None:
    data = viable()
    data["subject"].update(type="file", name="model.py:build", weights="real", attn=None, compile_kwargs={})
    text = _shown(data)
    assert "bfloat16" not in text
    assert "attention" not in text
    assert "real weights" in text


def test_quiet_tells_no_progress() -> None:
    err = io.StringIO()
    with progress(err, quiet=True) as on_event:
        on_event(None)  # type: ignore[arg-type]
    assert err.getvalue() == ""


class _Lines(io.StringIO):
    """Says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def flush(self) -> None:
        self.written.set()


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is() -> None:
    err = _Lines()
    with progress(err, every_s=0.01) as on_event:
        on_event(_Event(phase="known", text="not viable: graph_break tensor.item; proving"))  # type: ignore[arg-type]
        on_event(_Event(phase="prove", text="remedy 2 of 5: pad"))  # type: ignore[arg-type]
        on_event(_Event(phase="step", mode="auto", step=2, of=4, length=640))  # type: ignore[arg-type]
        err.written.clear()
        assert err.written.wait(60)
    lines = err.getvalue().splitlines()
    assert lines[0] == "cftdiag: not viable: graph_break tensor.item; proving"
    assert re.fullmatch(r"cftdiag: \d+ s: remedy 2 of 5: pad: first pass: step 2 of 4, length 640", lines[-1])


def test_a_check_of_a_moment_says_nothing_on_a_pipe() -> None:
    err = io.StringIO()
    with progress(err) as on_event:
        on_event(_Event(phase="start"))  # type: ignore[arg-type]
    assert err.getvalue() == ""


@dataclasses.dataclass(kw_only=True)
class _Event:
    phase: str
    mode: str = ""
    step: int = 0
    of: int = 0
    length: int | None = None
    text: str = ""


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (_Event(phase="start", mode="fullgraph"), "fullgraph pass"),
        (_Event(phase="build", mode="collect"), "collecting graph breaks: building the model"),
        (
            _Event(phase="step", mode="fullgraph", step=2, of=4, length=640),
            "fullgraph pass: step 2 of 4, length 640",
        ),
        (_Event(phase="prove", mode="pad to [8]"), "pad to [8]: proving a remedy"),
        (_Event(phase="done"), "done"),
    ],
)
def test_progress_on_a_terminal(event: _Event, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    err = _Terminal()
    with progress(err) as on_event:
        on_event(event)  # type: ignore[arg-type]
    assert says in err.getvalue()


def test_report_verb_renders_what_check_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "check.json"
    path.write_text(json.dumps(viable()))
    assert run(["report", str(path)]) == 0
    assert capsys.readouterr().out == VIABLE
    assert run(["report", str(path), "-q"]) == 0
    assert capsys.readouterr().out == VIABLE.splitlines()[-1] + "\n"
    assert run(["report", str(path), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == viable()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[]", "schema"),
        ('{"schema": "cftdiag.run/9"}', "cftdiag.run/9"),
        ('{"schema": "cftdiag.check/1"}', "verdict"),
        (json.dumps({**viable(), "blocks": [1]}), "blocks"),
        (json.dumps({**viable(), "findings": {}}), "findings"),
    ],
)
def test_another_file_is_refused_in_one_line(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "check.json"
    path.write_text(text)
    assert run(["report", str(path)]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["model.layers.0", "model.layers.1", "model.layers.2", "model.layers.5"], "model.layers.0-2,5"),
        (["model.layers.3"], "model.layers.3"),
        (["model.layers.*"], "model.layers.*"),
        (["lm_head", "model.layers.1.mlp", "model.layers.0.mlp"], "model.layers.0-1.mlp, lm_head"),
        (["a.0.experts.0", "a.0.experts.1", "a.1.experts.0"], "a.0.experts.0-1, a.1.experts.0"),
        ([], ""),
    ],
)
def test_names_are_folded(names: list[str], folded: str) -> None:
    assert wording.fold_names(names) == folded


def test_paths_start_at_the_package_or_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        wording.short_path("/v/lib/python3.11/site-packages/transformers/modeling.py")
        == "transformers/modeling.py"
    )
    assert wording.short_path(str(tmp_path / "a" / "b.py")) == "a/b.py"
    assert wording.short_path("/elsewhere/b.py") == "/elsewhere/b.py"
