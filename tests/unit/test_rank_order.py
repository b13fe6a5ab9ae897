"""Ranks held against one another by their collectives."""

from __future__ import annotations

import json
from pathlib import Path

from cftdiag.check.rank_order import Call, divergence, read


def calls(*names: str, group: tuple[int, ...] = (0, 1)) -> tuple[Call, ...]:
    return tuple(Call(name, group, 4, i + 1, "train.py", 10 + i) for i, name in enumerate(names))


def test_ranks_that_agree_are_no_finding() -> None:
    same = calls("allreduce", "allgather")
    assert divergence({0: same, 1: same, 2: calls("barrier", group=(2, 3))}) is None


def test_first_call_at_which_ranks_part_is_told() -> None:
    found = divergence({0: calls("allreduce", "allgather"), 1: calls("allreduce", "broadcast", "allgather")})
    assert found is not None and found.severity == "error" and found.steps == (2,)
    assert found.evidence == (
        "step 2: rank 0 calls allgather of 4 elements (train.py:11) while rank 1 calls broadcast of 4 elements (train.py:11)",
    )


def test_other_sizes_and_missing_calls_part_ranks_too() -> None:
    small = (Call("allreduce", (0, 1), 2, 1),)
    assert divergence({0: calls("allreduce"), 1: small}) is not None
    early = divergence({0: calls("allreduce", "barrier"), 1: calls("allreduce")})
    assert early is not None and "rank 1 calls nothing more" in early.explanation
    # a rank that was stopped has not left the others waiting
    assert divergence({0: calls("allreduce", "barrier"), 1: calls("allreduce")}, ended=False) is None


def test_groups_of_other_ranks_do_not_count() -> None:
    mine, theirs = calls("allreduce", group=(0, 2)), calls("allreduce", "allgather", group=(1, 3))
    assert divergence({0: mine, 1: theirs}) is None


def test_half_a_line_ends_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "collectives.jsonl"
    path.write_text(json.dumps(["allreduce", [0, 1], 4, 1, "a.py", 3]) + "\n" + '["allre')
    assert read(path) == (Call("allreduce", (0, 1), 4, 1, "a.py", 3),)
    assert read(tmp_path / "missing") == ()
