"""Compile caches: what is there is told, and nothing is loaded that others could have written."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import pytest

from cftdiag import artifacts, cache_folder
from cftdiag.cli.main import run
from cftdiag.report.tables import age, show_cache
from trainer.cache import _fingerprint, _path, load_cache, save_cache
from trainer.config import TrainConfig

HERE = artifacts.fingerprint(None)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "artifacts.rank00000"
    artifacts.write(path, b"compiled" * 100, {"inductor": 3, "aot_autograd": 1}, HERE)
    return path


def test_what_was_written_is_read_back(saved: Path) -> None:
    head, data = artifacts.read(saved)
    assert data == b"compiled" * 100 and head.artifacts == {"inductor": 3, "aot_autograd": 1}
    assert head == artifacts.read_head(saved)
    assert head.differs(HERE) == {} and abs(head.time - time.time()) < 600
    assert head.differs(HERE | {"torch": "9.9"}) == {"torch": (HERE["torch"], "9.9")}
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-1], "its checksum does not hold"),
        (lambda data: data[:-1] + b"X", "its checksum does not hold"),
        (lambda data: data[:40], "damaged"),
        (lambda data: data.replace(b'"size"', b'"sice"'), "its head cannot be read"),
        (lambda data: b"\x80\x04" + data, "no file of compiled artifacts"),
        (lambda data: b"", "no file of compiled artifacts"),
    ],
)
def test_a_damaged_file_is_a_line(damage, says: str, saved: Path) -> None:
    saved.write_bytes(damage(saved.read_bytes()))
    with pytest.raises(artifacts.Unusable, match=says) as caught:
        artifacts.read(saved)
    assert "\n" not in str(caught.value) and str(saved) in str(caught.value)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_refused(mode: int, saved: Path) -> None:
    saved.chmod(mode)
    with pytest.raises(artifacts.Unusable, match=r"others can write it.*chmod go-w"):
        artifacts.read(saved)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(saved: Path) -> None:
    os.chown(saved, 12345, 12345)
    with pytest.raises(artifacts.Unusable, match="belongs to another user"):
        artifacts.read(saved)


def test_the_trainer_starts_cold_and_says_why(tmp_path: Path) -> None:
    config = TrainConfig(
        model_name_or_path="m",
        data_path="d",
        output_dir=str(tmp_path / "o"),
        compile_scope="block",
        compile_cache=str(tmp_path / "artifacts"),
    )
    assert (load_cache(config) or "").endswith("nothing saved yet")
    artifacts.write(_path(config), b"x", {}, _fingerprint() | {"torch": "2.0"})
    assert f"torch 2.0 there, {HERE['torch']} here" in (load_cache(config) or "")
    artifacts.write(_path(config), b"x", {}, _fingerprint())
    _path(config).chmod(0o666)
    assert "others can write it" in (load_cache(config) or "")
    _path(config).chmod(0o644)
    _path(config).write_bytes(b"old format")
    said = load_cache(config) or ""
    assert "no file of compiled artifacts" in said and said.endswith("starting cold")
    told: list[str] = []
    save_cache(config, say=told.append)  # this process has compiled nothing
    assert told == [f"compile cache: backend {config.backend} leaves nothing to save"]


# ---- a directory ----


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Laid out as torch lays it out."""
    place = tmp_path / "torchinductor"
    for name in (
        "fxgraph/ab/fabc/entry1",
        "fxgraph/ab/fabc/entry2",
        "fxgraph/cd/fcde/entry",
        "aotautograd/axyz/entry",
        "triton/0/KEY/kernel.cubin",
        "triton/0/KEY/kernel.json",
        "ab/cabc.py",
        "cd/ccde.so",
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("1234")
    os.utime(place / "ab/cabc.py", (1000.0, 1000.0))
    return place


def test_a_directory_by_kind(folder: Path) -> None:
    found = cache_folder.read(folder)
    assert {k.kind: (k.entries, k.files, k.size) for k in found.kinds} == {
        "FX graphs": (2, 3, 12),
        "AOTAutograd": (1, 1, 4),
        "Triton kernels": (1, 2, 8),
        "generated code": (2, 2, 8),
    }
    assert next(k.oldest for k in found.kinds if k.kind == "generated code") == 1000.0
    assert found.foreign == ()
    (folder / "fxgraph/ab").chmod(0o777)
    assert cache_folder.read(folder).foreign == (str(folder / "fxgraph/ab"),)


def test_the_default_is_torchs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert str(cache_folder.default()) == default_cache_dir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert cache_folder.default() == tmp_path


def test_the_verb(folder: Path, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", str(folder), str(saved)]) == 0
    shown = capsys.readouterr().out
    assert "Triton kernels" in shown and "3 inductor, 1 aot_autograd" in shown and "it can hit" in shown
    assert run(["cache", str(folder), "--json"]) == 0
    assert [k["entries"] for k in json.loads(capsys.readouterr().out)[0]["kinds"]] == [1, 2, 1, 2]
    artifacts.write(saved, b"x", {}, HERE | {"torch": "2.0"})
    assert run(["cache", str(saved)]) == 0
    assert f"nothing of it hits here: torch 2.0 there, {HERE['torch']} here" in capsys.readouterr().out
    saved.write_bytes(b"x")
    assert run(["cache", str(saved)]) == 1
    assert "refused" in capsys.readouterr().out
    assert run(["cache", str(tmp_path / "none")]) == 2


def test_ages_and_writable_folders() -> None:
    assert [age(s) for s in (-3, 5, 90, 7200, 200000)] == ["0 s", "5 s", "2 min", "2 h", "2 d"]
    out = io.StringIO()
    show_cache({"path": "/c", "kinds": [], "foreign": ["/c/a", "/c/b", "/c/d", "/c/e"]}, now=0.0, file=out)
    assert "others can write /c/a, /c/b, /c/d and 1 more" in " ".join(out.getvalue().split())
