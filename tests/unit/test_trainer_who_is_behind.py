"""A rank that does not come is named, with what it was at."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.positions import Positions


def test_who_is_behind_is_named(tmp_path: Path) -> None:
    with Positions(tmp_path, rank=0, world=3) as zero, Positions(tmp_path, rank=1, world=3) as one:
        zero.at(7, "forward and backward")
        assert "rank 1 has not begun, rank 2 has not begun" in zero.describe()
        one.at(0, "reading the data")
        assert "rank 1 has been before its first step, reading the data, for 0 s" in zero.describe()
        one.at(6, "validation of a very long name that does not fit into the sixty-four bytes of a line")
        with Positions(tmp_path, rank=2, world=3) as two:
            two.at(7, "reading its rows")
            assert zero.describe().startswith("rank 1 has been in step 6, validation of a very long name")
            one.at(7, "checkpoint")
            assert (
                "rank 1 has been in step 7, checkpoint, for 0 s, rank 2 has been in step 7, reading"
                in zero.describe()
            )


def test_other_errors_pass(tmp_path: Path) -> None:
    with (
        Positions(tmp_path, rank=0, world=1) as here,
        pytest.raises(RuntimeError, match=r"^shape$"),
        here.named(),
    ):
        raise RuntimeError("shape")
