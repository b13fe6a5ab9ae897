"""The wheel holds what the verbs need, and they run with the core dependencies alone."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.unit.check_samples import not_viable

ROOT = Path(__file__).resolve().parents[2]

#: Runs a command line in a Python that finds this wheel and no package beyond what the core declares.
ALONE = """
import importlib.abc, sys
wheel, banned = sys.argv[1], set(sys.argv[2].split(","))

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in banned:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.path[:] = [wheel, *(p for p in sys.path if p not in ("", "."))]
import cftdiag
assert cftdiag.__file__.startswith(wheel), cftdiag.__file__
sys.argv = ["cftdiag", *sys.argv[3:]]
from cftdiag.cli import main
main()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("cftdiag", "trainer"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        folder,
        source,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [built] = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def extras():
    """Names that only the extras bring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(requirements):
        return {re.split(r"[^A-Za-z0-9_.-]", r)[0].lower() for r in requirements}

    named = set().union(*map(names, project["optional-dependencies"].values())) - names(
        project["dependencies"]
    )
    # what torch and transformers themselves need stays: safetensors, tokenizers, and triton with a CUDA build
    return sorted(named - {"safetensors", "tokenizers", "numpy"} - {"pytest", "ruff", "mypy"})


def alone(wheel, *arguments, cwd):
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", ALONE, str(wheel), ",".join(extras()), *map(str, arguments)]
    # the children of a check find the wheel too
    return subprocess.run(
        command, cwd=cwd, env={**env, "PYTHONPATH": str(wheel)}, capture_output=True, text=True
    )


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    for package in ("cftdiag", "trainer"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                assert (wheel / path.relative_to(ROOT)).is_file(), f"{path.relative_to(ROOT)} is not shipped"


def test_light_verbs_run(wheel, tmp_path):
    (tmp_path / "check.json").write_text(json.dumps(not_viable()))
    for arguments in (
        ("explain", "seq_len"),
        ("models", "Qwen3"),
        (
            "report",
            "check.json",
            "--html",
            "page.html",
            "--markdown",
            "page.md",
            "--sarif",
            "c.sarif",
            "--junit",
            "c.xml",
        ),
    ):
        done = alone(wheel, *arguments, cwd=tmp_path)
        assert done.returncode == 0 and done.stdout, done.stderr
    assert "<style>" in (tmp_path / "page.html").read_text()


@pytest.mark.everything(
    "a check and a self-test from the wheel; that every file is shipped stays in make test"
)
@pytest.mark.parametrize(
    "arguments", [("doctor",), ("check", "--model", "tiny.json", "--lengths", "16,24", "--depth", "trace")]
)
def test_verbs_that_compile_run(wheel, tmp_path, arguments):
    config = {"model_type": "qwen3", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}  # fmt: skip
    (tmp_path / "tiny.json").write_text(json.dumps(config))
    done = alone(wheel, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
