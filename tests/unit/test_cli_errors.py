"""An error is one line on stderr with the right exit code, and the light verbs stay light."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cftdiag.cli.main import VERBS, run


def _fails(capsys: pytest.CaptureFixture[str], code: int, *args: str) -> str:
    assert run(args) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nonsense"], "nonsense"),
        (["check"], "--model"),
        (["check", "--model", "Qwen3-4B", "--no-such-option"], "--no-such-option"),
        (["check", "--model", "Qwen3-4B", "--lengths", "512,0"], "at least 1"),
        (["check", "--model", "Qwen3-4B", "--lengths", "-3"], "at least 1"),
        (["check", "--model", "Qwen3-4B", "--lengths", "a,b"], "comma-separated"),
        (["check", "--model", "Qwen3-4B", "--lengths", ""], "comma-separated"),
        (["check", "--model", "Qwen3-4B", "--layers", "0"], "layers"),
        (["check", "--model", "Qwen3-4B", "--layers", "some"], "layers"),
        (["check", "--model", "Qwen3-4B", "--batch-size", "0"], "--batch-size"),
        (["check", "--model", "Qwen3-4B", "--timeout", "0"], "--timeout"),
        (["check", "--model", "Qwen3-4B", "--attn", "no_such_attention"], "--attn"),
        (["check", "--model", "Qwen3-4B", "--json", "/no/such/directory/x.json"], "/no/such/directory"),
        (["models", "no-such-model-anywhere"], "no-such-model-anywhere"),
        (["models", "--json", "--no-such-option"], "--no-such-option"),
        (["report", "/no/such/file.json"], "/no/such/file.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in _fails(capsys, 2, *args)


def test_a_typo_gets_the_closest_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Qwen3-4B" in _fails(capsys, 2, "models", "Qwne3-4B")


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "/no/such/file.json", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: ")


def test_an_internal_error_is_one_line_and_exit_code_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cftdiag import catalogue

    def broken(text: str | None = None) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(catalogue, "search", broken)
    assert "RuntimeError: two lines" in _fails(capsys, 3, "models")


def test_an_interrupt_is_no_conclusion(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cftdiag import catalogue

    def interrupted(text: str | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "search", interrupted)
    assert "interrupted" in _fails(capsys, 3, "models")


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out for verb in VERBS)


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: cftdiag {verb}")


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        ["models"],
        ["models", "--json"],
        ["explain"],
        ["explain", "seq_len"],
        ["check", "--help"],
    ],
)
def test_light_verbs_import_no_torch(args: list[str]) -> None:
    code = (
        f"import sys\nfrom cftdiag.cli.main import run\ncode = run({args!r})\nassert code == 0, code\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_no_torch_and_its_names_resolve() -> None:
    code = (
        "import sys, cftdiag\n"
        "import cftdiag.catalogue\n"
        "assert callable(cftdiag.check), 'a submodule hid the function'\n"
        "assert all(getattr(cftdiag, name) is not None for name in cftdiag.__all__)\n"
        "assert 'torch' not in sys.modules\n"
        "import cftdiag as c\n"
        "try: c.no_such_name\n"
        "except AttributeError: pass\n"
        "else: raise SystemExit('no error for an unknown name')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    for args in (["models"], ["models", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "cftdiag", *args], stdout=write_fd, stderr=subprocess.PIPE, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
    os.close(write_fd)


def test_models_json_is_an_array(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "qwen3-4b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [e["name"] for e in found] == ["Qwen3-4B", "Qwen3-4B-Instruct-2507"]
    assert found[0]["params"] == 4022468096
    assert found[0]["layers"] == 36


def test_models_json_of_nothing_is_an_empty_array(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "no-such-model", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_models_table_is_plain_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "qwen3-235b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "parameters", "layers", "architecture", "hub", "id", "verified"]
    assert lines[1].split() == [
        "Qwen3-235B-A22B",
        "235.09",
        "B",
        "94",
        "qwen3_moe",
        "Qwen/Qwen3-235B-A22B",
        "yes",
    ]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("given", "file"), [(["--json"], None), (["--json", "-"], None), (["--json", "out.json"], "out.json")]
)
def test_kernels_writes_json_to_a_file_or_to_stdout(
    given: list[str],
    file: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from cftdiag.kernels import job, render

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "kernels", lambda model, **options: {"model": model, "blocks": []})
    monkeypatch.setattr(render, "show", lambda data, **options: print("the report"))
    assert run(["kernels", "--target", "h200", *given, "--model", "Qwen3-4B"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out if file is None else Path(file).read_text())["model"] == "Qwen3-4B"
    assert file is None or out == "the report\n"
