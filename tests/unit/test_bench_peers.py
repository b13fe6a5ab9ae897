"""Peers in environments of their own: named, asked, left out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench import environments, peers
from tests.bench.environments import Environment


def test_an_environment_is_asked_for_its_own_packages(tmp_path: Path) -> None:
    found = environments.look(sys.executable, ("torch", "no-such-package"))
    assert found.versions["torch"] and found.versions["no-such-package"] is None
    with pytest.raises(ValueError, match="give the Python of an environment"):
        environments.look(str(tmp_path / "none"), ("torch",))


def test_a_peer_is_started_by_its_own_python_and_left_out_where_that_lacks_it(tmp_path: Path) -> None:
    pythons = environments.named(["sft=/own/python"], peers.NEEDS)
    words = [
        peers.command(tmp_path, tmp_path, 3, peers.Arm(name=name), 0, tmp_path, pythons).words[0]
        for name in ("sft", "sft-compiled", "trainer")
    ]
    assert words == ["/own/python", "/own/python", sys.executable]
    here = Environment(python=sys.executable, versions={"transformers": "5.0", "trl": None})
    there = Environment(python="/own/python", versions={"transformers": "5.0", "trl": "1.0"})
    seen = {"": here, "trainer": here, "sft": here}
    assert list(peers.missing(seen)) == ["sft", "sft-compiled"]
    assert not peers.missing({**seen, "sft": there})


@pytest.mark.parametrize("text", ["sft", "sft=", "axolotl=/own/python"])
def test_a_wrong_python_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(["--python", text])
    assert f"--python {text}: give PEER=PATH" in capsys.readouterr().err
