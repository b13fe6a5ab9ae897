"""A directory of compiled code, packed into a file and laid out elsewhere: the compile hits there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cftdiag import artifacts
from cftdiag.cli.main import run
from tests.warm import Warm

COMPILE = """
import json, torch, torch._inductor.config as config
from torch._dynamo.utils import counters
config.force_disable_caches = False
torch.compile(torch.matmul)(torch.ones(3, 4), torch.ones(4, 2))  # a call of a library: no C++ to build
print(json.dumps({**counters["inductor"], **counters["aot_autograd"]}))
"""


def compiled(warm: Warm, folder: Path) -> dict[str, int]:
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": None}
    return json.loads(warm.run(COMPILE, env=environment).stdout.splitlines()[-1])


def test_what_is_packed_hits_where_it_is_unpacked(
    warm: Warm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, file = tmp_path / "first", tmp_path / "second", tmp_path / "nodes.artifacts"
    cold = compiled(warm, first)
    assert cold["fxgraph_cache_miss"] == 1 and "fxgraph_cache_hit" not in cold
    assert run(["cache", str(first), "--pack", str(file), "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row["artifacts"] == {"inductor": 1, "aot_autograd": 1} and row["hits"]

    assert run(["cache", str(file), "--unpack", str(second)]) == 0
    assert "FX graphs" in capsys.readouterr().out
    hit = compiled(warm, second)
    assert hit["autograd_cache_hit"] == 1 and "autograd_cache_miss" not in hit, hit

    second.chmod(0o777)
    assert run(["cache", str(second), "--pack", str(file)]) == 2
    assert "others can write" in capsys.readouterr().err
    head, data = artifacts.read(file)
    artifacts.write(file, data, head.artifacts, {**head.fingerprint, "torch": "9.9"})
    assert run(["cache", str(file), "--unpack", str(tmp_path / "third")]) == 2
    assert "nothing of it would hit here (torch 9.9 there" in capsys.readouterr().err
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["empty", "--pack", "file"], "holds no FX graph"),
        (["absent", "--pack", "file"], "no such directory"),
        (["empty", "--pack", "file", "--unpack", "x"], "one of the two"),
        (["empty", "--unpack", "x"], "--unpack takes a file"),
        (["--unpack", "x"], "--unpack takes a file"),
    ],
)
def test_what_cannot_be_carried_is_one_line(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    assert run(["cache", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and says in line


RECORDED = """
import json, sys, torch, torch._inductor.config as config
from cftdiag.cache_keys import Notes
from cftdiag.capture import Recorder
config.force_disable_caches = False
config.max_fusion_size = int(sys.argv[1])
with Recorder(cache_notes=Notes()) as recorder:
    torch.compile(torch.matmul)(torch.ones(3, 4), torch.ones(4, 2))
told = [e.cached for e in recorder.events if e.kind == "cache" and e.cached.cache == "fx_graph"]
print(json.dumps([[d.outcome, d.nearest, d.differs] for d in told]))
"""


def test_a_later_run_says_which_part_of_its_key_is_another(warm: Warm, tmp_path: Path) -> None:
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": None}

    def told(size: int) -> list[list[object]]:
        return json.loads(warm.run(RECORDED, str(size), env=environment).stdout.splitlines()[-1])

    tmp_path.chmod(0o755)
    assert told(64) == [["miss", None, None]]
    ((outcome, nearest, differs),) = told(63)
    assert (outcome, differs) == ("miss", ["inductor_config[max_fusion_size]"])
    assert str(nearest).startswith("0/0 of ")
