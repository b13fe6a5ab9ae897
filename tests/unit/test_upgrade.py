"""`cftdiag upgrade`: an environment beside the present one, pip's reasons on a line. No network, no check."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cftdiag.cli.main import run
from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.upgrade import check_in, existing, make, present
from cftdiag.upgrade.environment import folder, pip_reason


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes its packages from, with versions 1.0 and 2.0 of one."""
    place = tmp_path / "wheels"
    place.mkdir()
    for version in ("1.0", "2.0"):
        info = f"tinything-{version}.dist-info"
        with zipfile.ZipFile(place / f"tinything-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tinything.py", f"VERSION = {version!r}\n")
            wheel.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tinything\nVersion: {version}\n"
            )
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return place


def test_an_environment_has_what_was_asked_for_and_all_else_of_the_present_one(
    wheels: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    made = make(["tinything==2.0"], say=said.append)
    assert made.python.startswith(str(tmp_path / "cache")) and "tinything==2.0" in said[0]
    code = "import importlib.util as u, tinything; print(tinything.VERSION, u.find_spec('torch').origin)"
    done = subprocess.run([made.python, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    version, torch = done.stdout.split()
    here = subprocess.run(
        [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (version, torch) == ("2.0", here.stdout.strip())
    said.clear()
    assert make(["tinything==2.0"], say=said.append) == made and said == []  # made once
    # what pip refuses, in an environment that is made anew, and a folder that is somebody else's
    with pytest.raises(InputError, match=r"tinything==9.*the newest there are: 1.0, 2.0") as caught:
        make(["tinything==9"], tmp_path / "env")
    assert "\n" not in str(caught.value)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    with pytest.raises(InputError, match="was not made by cftdiag upgrade"):
        make(["tinything==2.0"], tmp_path / "mine")
    assert (tmp_path / "mine" / "pyvenv.cfg").exists()


def test_each_wish_has_its_own_folder() -> None:
    one, two = folder(["torch==2.14.1"]), folder(["torch==2.14.1", "transformers==5.25.0"])
    assert one != two and one.name.startswith("torch-2.14.1-")
    assert (
        folder(["a==1", "b==2"]).name.rpartition("-")[2] == folder(["b==2", "a==1"]).name.rpartition("-")[2]
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement torch==9 (from versions: 2.1, 2.2)\n"
            "ERROR: No matching distribution found for torch==9\n",
            "No matching distribution found for torch==9 (the newest there are: 2.1, 2.2)",
        ),
        ("WARNING: retry\nERROR: [Errno 28] No space left on device\n", "[Errno 28] No space left on device"),
        ("Killed\n", "Killed"),
        ("", "no reason given"),
    ],
)
def test_pips_reason_is_a_line(text: str, says: str) -> None:
    assert pip_reason(text) == says


def test_a_check_that_refuses_says_where(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"with the present environment: .*no-such-model-anywhere"):
        check_in(present(), ["--model", "no-such-model-anywhere"])
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(EnvironmentUnfit, match="its Python does not run"):
        check_in(existing(str(fake)), ["--model", "m"])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--", "--model", "m"], "give one of --to, --from and --python"),
        (["--to", "torch==2.14.1", "--python", "python3", "--", "--model", "m"], "give one of"),
        (["--to", "torch==2.14.1"], "no check to run"),
        (["--python", "/no/such/python", "--", "--model", "m"], "no Python to run"),
        (["--to", "torch==2.14.1", "--", "--model", "m", "--json=x"], "--json has no place"),
        (["--python", "python3", "--environment", "e", "--", "--model", "m"], "--environment is made for"),
    ],
)
def test_mistakes_are_a_line(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["upgrade", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and says in captured.err and len(captured.err.splitlines()) == 1


def test_both_checks_and_their_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two interpreters that answer with saved checks: the verb compares what they say, in the order asked for."""
    from check_samples import recompiles, viable

    def interpreter(name: str, check: dict, torch: str) -> str:
        saved = tmp_path / f"{name}.saved"
        saved.write_text(json.dumps(check | {"environment": {"torch": torch}}))
        script = tmp_path / name
        script.write_text(
            f'#!/bin/sh\nif [ "$1" = -c ]; then echo \'{{"torch": "{torch}", "transformers": null}}\'\n'
            f'else test "$5 $7 $8" = "{tmp_path}/x --model m" || cp {saved} "$5"; fi\n'
        )
        script.chmod(0o755)
        return str(script)

    old, new = interpreter("old", viable(), "2.13.0"), interpreter("new", recompiles(), "2.14.1")
    monkeypatch.setattr(sys, "executable", old)
    asked = ["upgrade", "--python", new, "--fail-on", "warning", "--keep", str(tmp_path / "kept")]
    assert run([*asked, "--", "--model", "m"]) == 1
    captured = capsys.readouterr()
    assert "torch  2.13.0 -> 2.14.1" in captured.out and "recompile seq_len" in captured.out
    assert f"checking with {new} (torch 2.14.1)" in captured.err
    assert json.loads((tmp_path / "kept" / "after.json").read_text())["verdict"] == "viable_with_recompiles"
