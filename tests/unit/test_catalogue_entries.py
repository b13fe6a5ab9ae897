"""The catalogue without torch: lookup, search, close matches, the shape of every entry."""

from __future__ import annotations

import pytest

from cftdiag import catalogue


def test_names_and_hub_ids_are_unique() -> None:
    entries = catalogue.entries()
    assert len(entries) == 98
    for key in ("name", "hub_id"):
        assert len({getattr(e, key).lower() for e in entries}) == len(entries)
    assert not {e.name.lower() for e in entries} & {e.hub_id.lower() for e in entries}


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda e: e.name)
def test_an_entry_is_complete(entry: catalogue.Entry) -> None:
    assert entry.hub_id.count("/") == 1
    assert entry.params > 10**7
    assert entry.layers is not None
    assert entry.layers > 0
    assert entry.source
    assert entry.params_source
    assert entry.model_type.isidentifier()
    assert "model_type" not in entry.config


@pytest.mark.parametrize("name", ["Qwen3-4B", "qwen3-4b", "Qwen/Qwen3-4B", " qwen/qwen3-4b "])
def test_find_takes_name_or_hub_id_in_any_case(name: str) -> None:
    entry = catalogue.find(name)
    assert entry is not None
    assert (entry.name, entry.params, entry.layers) == ("Qwen3-4B", 4022468096, 36)


def test_find_takes_no_part_of_a_name() -> None:
    assert catalogue.find("Qwen3") is None
    assert catalogue.find("") is None


def test_search_needs_every_word() -> None:
    assert {e.model_type for e in catalogue.search("granite HYBRID")} == {"granitemoehybrid"}
    assert catalogue.search() == catalogue.entries()
    assert catalogue.search("qwen3 llama") == ()


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("Qwen3-4", "Qwen3-4B"),
        ("Qwne3-4B", "Qwen3-4B"),
        ("lama-3.1-8b", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8b-x", "Llama-3.1-8B"),
    ],
)
def test_close_matches(typo: str, meant: str) -> None:
    assert meant in catalogue.close_matches(typo)


def test_nothing_is_close_to_nonsense() -> None:
    assert catalogue.close_matches("zzzzzzzz") == []
