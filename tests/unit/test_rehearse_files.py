"""The script's writes: seen by the script, not by the disk."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

from cftdiag.rehearse.settings import EagerShare, Fault, Outcome

ROOT = Path(__file__).resolve().parents[2]


def guarded(tmp_path: Path, program: str, *, confine: bool = False) -> object:
    """Run ``program`` with the overlay in a process of its own, in the folder ``work``; its ``found``."""
    work, scratch = tmp_path / "work", tmp_path / "scratch"
    work.mkdir(exist_ok=True)
    scratch.mkdir()
    head = f"""
        import json, os, pathlib, shutil, subprocess, sys
        from cftdiag.rehearse import confine, file_calls
        from cftdiag.rehearse.overlay import Overlay
        overlay = Overlay({str(scratch / "files")!r}, [{str(scratch)!r}])
        os.makedirs(overlay.root)
        if {confine}:
            confined = confine.confine([{str(scratch)!r}])
        file_calls.install(overlay)
        import tempfile  # it keeps functions of os from its import
    """
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(head) + textwrap.dedent(program) + "\nprint(json.dumps(found))",
        ],
        cwd=work,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_script_sees_its_own_changes_and_the_disk_none(tmp_path: Path) -> None:
    (tmp_path / "work" / "out").mkdir(parents=True)
    (tmp_path / "work" / "log.txt").write_text("old\n")
    (tmp_path / "work" / "out" / "model.bin").write_text("precious")
    before = tree(tmp_path / "work")
    found = guarded(
        tmp_path,
        """
        open("log.txt", "a").write("new\\n")
        shutil.rmtree("out")
        gone = os.path.exists("out")
        os.makedirs("out/step-1")
        pathlib.Path("out/step-1/model.bin").write_text("ours")
        os.rename("out/step-1", "out/step-2")
        shutil.copytree("out/step-2", "best")
        os.replace("log.txt", "log.old")
        os.remove("best/model.bin")
        with tempfile.NamedTemporaryFile(dir="out") as file:
            held = len(os.listdir("out"))
        found = {
            "gone": gone,
            "held": held,
            "log": open("log.old").read(),
            "names": sorted(os.listdir(".")),
            "walk": sorted(str(p) for p in pathlib.Path(".").rglob("*")),
            "scan": sorted(e.name for e in os.scandir("out") if e.is_dir()),
            "model": open("out/step-2/model.bin").read(),
        }
        """,
    )
    assert found == {
        "gone": False,
        "held": 2,
        "log": "old\nnew\n",
        "names": ["best", "log.old", "out"],
        "walk": ["best", "log.old", "out", "out/step-2", "out/step-2/model.bin"],
        "scan": ["step-2"],
        "model": "ours",
    }
    assert tree(tmp_path / "work") == before


def test_errors_are_those_that_the_script_expects(tmp_path: Path) -> None:
    (tmp_path / "work" / "out").mkdir(parents=True)
    found = guarded(
        tmp_path,
        """
        def kind(call, *args, **kwargs):
            try:
                call(*args, **kwargs)
            except OSError as error:
                return type(error).__name__
        os.mkdir("mine")
        found = [
            kind(os.mkdir, "out"), kind(os.mkdir, "mine"), kind(open, "none/x", "w"), kind(open, "none"),
            kind(open, "none", "r+"), kind(os.remove, "none"), kind(shutil.rmtree, "none"),
            kind(os.listdir, "none"), kind(os.makedirs, "out", exist_ok=True), kind(open, "out/a", "x"),
            kind(open, "out/a", "x"), kind(os.rename, "none", "b"),
        ]
        """,
    )
    missing, there = "FileNotFoundError", "FileExistsError"
    assert found == [
        there,
        there,
        missing,
        missing,
        missing,
        missing,
        missing,
        missing,
        None,
        None,
        there,
        missing,
    ]


def test_programs_that_the_script_starts_cannot_write_either(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "kept").write_text("precious")
    found = guarded(
        tmp_path,
        """
        found = [confined, subprocess.run(["rm", "-f", "kept"], capture_output=True).returncode]
        """,
        confine=True,
    )
    assert isinstance(found, list)
    if found[0]:  # a kernel without Landlock confines nothing, and the report says so
        assert found[1] != 0
        assert (work / "kept").read_text() == "precious"


def test_outcome_survives_the_file(tmp_path: Path) -> None:
    outcome = Outcome(
        torch="2.13.0",
        fault=Fault(error="ValueError", message="no", file="a.py", line=3, compile=True),
        ended_by_limit=True,
        members=(("layers.0", "Block"),),
        parameters=12,
        eager=(EagerShare(name="lm_head", flops=2.0, parameters=4),),
        undetermined=("a", "b"),
    )
    outcome.write(tmp_path / "outcome.json")
    assert Outcome.read(tmp_path / "outcome.json") == outcome
    (tmp_path / "outcome.json").write_text('{"torch": ')
    assert Outcome.read(tmp_path / "outcome.json") is None


def test_native_readers_and_writers_see_the_same_files(tmp_path: Path) -> None:
    found = guarded(
        tmp_path,
        """
        from cftdiag.rehearse import native_files
        native_files.install(overlay)
        import pyarrow, pyarrow.parquet, tokenizers
        from tokenizers import models
        os.makedirs("out")
        tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save("out/tokenizer.json", pretty=True)
        pyarrow.parquet.write_table(pyarrow.table({"x": [1, 2]}), "out/rows.parquet")
        open("raw", "wb").write(b"bytes")
        found = [
            tokenizers.Tokenizer.from_file("out/tokenizer.json").get_vocab_size(),
            pyarrow.parquet.read_table("out/rows.parquet")["x"].to_pylist(),
            pyarrow.memory_map("raw").read().decode(),
            sorted(os.listdir("out")),
        ]
        """,
        confine=True,
    )
    assert found == [1, [1, 2], "bytes", ["rows.parquet", "tokenizer.json"]]
    assert tree(tmp_path / "work") == {}


def test_native_code_writes_and_reads_what_the_script_sees(tmp_path: Path) -> None:
    found = guarded(
        tmp_path,
        """
        from cftdiag.rehearse import native_files
        native_files.install(overlay)
        import sqlite3
        import numpy
        from safetensors.numpy import load_file, save_file
        with sqlite3.connect("runs.db") as base:
            base.execute("create table runs (name)")
        save_file({"weight": numpy.ones(3)}, "model.safetensors")
        os.makedirs("sub")
        os.chdir("sub")
        found = [
            sqlite3.connect("../runs.db").execute("select count(*) from runs").fetchone()[0],
            load_file("../model.safetensors")["weight"].tolist(),
            os.path.relpath(os.getcwd(), os.path.dirname(os.getcwd())),
            "scratch" in os.getcwd(),
        ]
        """,
        confine=True,
    )
    assert found == [0, [1.0, 1.0, 1.0], "sub", False]
    assert list((tmp_path / "work").iterdir()) == []
