"""Recipes of --model, and what build() may return."""

from __future__ import annotations

import json

import pytest

from cftdiag.errors import InputError
from cftdiag.subject import Origin, Subject, as_subject, resolve


class Model:
    def named_modules(self):
        return iter(())


def test_catalogue_name_in_any_case():
    assert resolve("qwen3-4b").name == "Qwen3-4B"
    assert resolve("Qwen/Qwen3-4B").type == "config"


def test_a_directory_and_its_config(tmp_path):
    config = {"model_type": "qwen3", "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for given in (tmp_path, tmp_path / "config.json"):
        origin = resolve(str(given))
        assert (origin.type, origin.config, origin.name) == ("config", config, tmp_path.name)


def test_a_builder(tmp_path):
    (tmp_path / "mine.py").write_text("def make(): pass")
    origin = resolve(f"{tmp_path}/mine.py:make")
    assert (origin.type, origin.attr) == ("file", "make")
    assert resolve(f"{tmp_path}/mine.py").attr == "build"


def test_a_hub_id_is_left_to_the_hub():
    assert resolve("somebody/their-model") == Origin(type="hub", name="somebody/their-model")


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("config.json", "{", "not JSON"),
        ("config.json", "[1]", "not an object"),
        ("config.json", "{}", "has no model_type"),
        ("config.json", '{"model_type": 3}', "has no model_type"),
        ("other.txt", "x", "holds no config.json"),
    ],
)
def test_a_bad_directory(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    "model, said",
    [
        ("", "no model given"),
        ("Qwen3-4", "did you mean Qwen3-4B"),
        ("./nothing", "no such file"),
        ("nothing.json", "no such file"),
        ("nothing.py:build", "no such file"),
        ("nothing.py:a b", "no function name"),
        ("zzzzzzzz", "is no catalogue name"),
    ],
)
def test_what_is_nothing(model, said):
    with pytest.raises(InputError, match=said):
        resolve(model)


@pytest.mark.parametrize(
    "built, said",
    [
        (None, "returned None; return"),
        (3, "returned a int"),
        ((Model(), [], 1), "returned a tuple of 3"),
        ((object(), [{}]), "must be a torch.nn.Module"),
        ((Model(), {"x": 1}), "give a list of dicts"),
        ((Model(), [1]), "batch 0 is a int"),
        ((Model(), [{1: 2}]), "batch 0 is a dict"),
        ((Model(), []), "no batches"),
        (Subject(model=Model(), batches=[{}], compile_kwargs=3), "compile_kwargs is a int"),
    ],
)
def test_what_build_may_not_return(built, said):
    with pytest.raises(InputError, match=said):
        as_subject(built, "mine.py:build")


def test_no_batches_with_wrap():
    assert as_subject(Subject(model=Model(), wrap=lambda model: model), "x").batches == ()
