"""``cftdiag check -- COMMAND`` against the same command run for real under ``cftdiag run``."""

from __future__ import annotations

import pytest

from tests.truth.scripts import SCRIPTS, compare

#: One whole model with evaluation and checkpoints, and one with breaks.
_ALWAYS = ("gpt_loop", "broken_blocks")
_LONG = pytest.mark.everything("a minute or more each; a whole model and one with breaks stay")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _ALWAYS else _LONG) for name in SCRIPTS]
)
def test_rehearsal_says_what_the_real_run_says(name: str) -> None:
    if SCRIPTS[name].missing is not None:
        pytest.skip(f"{SCRIPTS[name].missing} is not installed")
    happened, found = compare(name)
    assert happened.compiles, "nothing was compiled"
    assert not found
