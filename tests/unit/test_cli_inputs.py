"""Inputs that are wrong are refused in one line, before torch is imported; none is an internal error."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import monitor_samples as samples
import pytest
from check_samples import forecasted, not_viable, viable

from cftdiag.cli.main import run


def _refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(args) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and err.startswith("error: ")
    return err


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import helper\n\n\ndef build():\n    return 1\n")
    return path


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--depth", "trace", "--target", "h200"], "--depth trace stops"),
        (["--flash-varlen"], "does not read"),
        (["--flash-varlen", "--attn", "sdpa"], "does not read"),
        (["--batch-size", "1000000000000"], "tokens in one forward"),
        (["--lengths", "99999999999999999999"], "tokens in one forward"),
        (["--timeout", "nan"], "number of seconds"),
        (["--timeout", "inf"], "number of seconds"),
        (["--verify-budget", "nan"], "number of seconds"),
        (
            ["--set", "torch._dynamo.config.recompile_limt=3"],
            "did you mean torch._dynamo.config.recompile_limit",
        ),
        (["--set", "torch._dynamo.config.recompile_limit=many"], "takes an int, not a str"),
        (["--set", "torch._dynamo.config.specialize_float=1"], "takes a bool, not an int"),
        (["--set", "torch._inductor.config.triton.no_such=1"], "no such setting"),
    ],
)
def test_what_could_not_end_well_is_refused_at_once(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cftdiag.check.run_check", lambda *a: pytest.fail("the check was started"))
    assert says in _refused(capsys, "check", "--model", "Qwen3-4B", *args)


@pytest.mark.parametrize(
    "setting",
    [
        "torch._dynamo.config.recompile_limit=16",
        "torch._inductor.config.triton.mix_order_reduction=False",
        "torch._functorch.config.activation_memory_budget=1",
        "torch.fx.experimental._config.use_duck_shape=False",
        "torch.compiler.config.dynamic_sources=L['x']",
    ],
)
def test_settings_that_torch_has_are_taken(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cftdiag.errors import InputError

    def started(options: Any, progress: Any) -> None:
        raise InputError(str(options.patch.torch_config))

    monkeypatch.setattr("cftdiag.check.run_check", started)
    assert run(["check", "--model", "Qwen3-4B", "--set", setting]) == 2


def test_every_setting_of_a_remedy_is_one_of_this_torch() -> None:
    from cftdiag.cli.early import _settings_of
    from cftdiag.diagnose import CAUSES
    from cftdiag.torch_settings import SOME_RELEASES

    named = {k for c in CAUSES.values() for r in c.remedies for k in r.change or {} if k.startswith("torch.")}
    assert named
    for name in named - set(SOME_RELEASES):
        module, _, rest = name.partition("config.")
        assert rest in (_settings_of(f"{module}config") or {}), name


@pytest.mark.parametrize(
    ("source", "builder", "says"),
    [
        ("def build(:\n", "build", "train.py:1: invalid syntax"),
        ("x = 1\n\0", "build", "train.py"),
        ("def bild():\n    pass\n", "build", "did you mean"),
        ("", "build", "has no function 'build'"),
        ("class A:\n    def build(self): pass\n", "build", "has no function 'build'"),
    ],
)
def test_source_is_looked_at_before_it_is_imported(
    program: Path, source: str, builder: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text(source)
    assert says in _refused(capsys, "check", "--model", f"{program}:{builder}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1\nb: 2\n", "run.yaml:2: no YAML"),
        ("- 1\n", "holds a list"),
        ("", "holds a NoneType"),
        ("[" * 5000, "no YAML"),
        (None, "cannot be read (No such file"),
    ],
)
def test_yaml_is_read_before_torch_is_imported(
    text: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.yaml"
    if text is not None:
        path.write_text(text)
    assert says in _refused(capsys, "check", "--config", str(path))


@pytest.mark.parametrize(
    "source",
    [
        "from helper import build\n",
        "from helper import *\n",
        "import helper as build\n",
        "if True:\n    def build(): pass\n",
        "build = lambda: 1\n",
        "globals()['build'] = 1\n",
        "def __getattr__(name): ...\n",
        "for build in [1]: pass\n",
        "with open('x') as build: pass\n",
    ],
)
def test_a_builder_may_come_from_anywhere(
    program: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cftdiag.errors import InputError

    def started(*args: Any) -> None:
        raise InputError("started")

    program.write_text(source)
    monkeypatch.setattr("cftdiag.check.run_check", started)
    assert run(["check", "--model", str(program)]) == 2


@pytest.mark.parametrize(
    "args",
    [
        ["run", "--compile-budget", "nan", "--", "true"],
        ["run", "--eager-step-seconds", "inf", "--", "true"],
        ["watch", "/no/run", "--wait", "nan"],
    ],
)
def test_seconds_are_finite_everywhere(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "number of seconds" in _refused(capsys, *args)


@pytest.mark.parametrize("eager", ["-1", "0", "nan", "inf"])
def test_an_eager_step_takes_time(eager: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = samples.write_run(tmp_path / "run", {0: [samples.head(), samples.compiled()]})
    assert "--eager" in _refused(capsys, "report", str(path), "--eager", eager)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"verdict": "fine"}, "unknown verdict 'fine'"),
        ({"depth": "deep"}, "unknown depth"),
        ({"findings": [{**not_viable()["findings"][0], "severity": "bad"}]}, "unknown severity 'bad'"),
        ({"findings": [{**not_viable()["findings"][0], "kind": "bad"}]}, "unknown kind"),
        ({"compiles": [{**viable()["compiles"][0], "seconds": "long"}]}, "'compiles' has a wrong 'seconds'"),
        ({"compiles": [{**viable()["compiles"][0], "seconds": True}]}, "'compiles' has a wrong 'seconds'"),
        ({"timing": {"wall_s": "long"}}, "'timing' has a wrong 'wall_s'"),
        ({"blocks": [{"class": "x"}]}, "'blocks' has no 'fqn'"),
        ({"change_first": [{"edit": 1, "before": {}, "after": {}}]}, "'change_first'"),
    ],
)
def test_a_saved_check_with_something_else_in_it(
    change: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "check.json"
    path.write_text(json.dumps({**viable(), **change}))
    assert says in _refused(capsys, "report", str(path))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 5000, json.dumps(viable()).replace("3.214", "NaN")]
)
def test_json_that_no_reader_takes(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "check.json"
    path.write_text(text)
    assert "not JSON" in _refused(capsys, "report", str(path))


WRONG = (None, True, -1, 1e308, "text", [], {}, [None], [[]], {"x": {}}, "\ud800")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


@pytest.mark.parametrize("seed", range(5))
def test_no_part_of_a_saved_check_can_make_an_internal_error(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One part at a time replaced by something of another type: read or refused, in every form."""
    chosen = random.Random(seed)
    data = forecasted()
    data["findings"] = not_viable()["findings"]
    data["blocks"] = data["blocks"][:2]
    data = json.loads(json.dumps(data))
    source, page = tmp_path / "check.json", str(tmp_path / "page")
    places = [place for place in _places(data) if place]
    for place in chosen.sample(places, 16):
        broken = copy.deepcopy(data)
        inner = broken
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = chosen.choice(WRONG)
        source.write_text(json.dumps(broken))
        for form in ([], ["--markdown", page], ["--sarif", page], ["--junit", page], ["--html", page])[
            :: 1 + seed % 2
        ]:
            code = run(["report", str(source), *form])
            said = capsys.readouterr().err
            assert code in (0, 2), (place, inner[place[-1]], said)
