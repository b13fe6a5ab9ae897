"""``cftdiag check -- COMMAND`` against the same command run for real under ``cftdiag run``."""

from __future__ import annotations

import pytest

from tests.truth.scripts import SCRIPTS, compare

#: One with breaks, recompiles and steps without either.
_ALWAYS = ("broken_blocks",)
_LONG = pytest.mark.everything("half a minute or more each; one with breaks stays")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _ALWAYS else _LONG) for name in SCRIPTS]
)
def test_rehearsal_says_what_the_real_run_says(name: str) -> None:
    if SCRIPTS[name].missing is not None:
        pytest.skip(f"{SCRIPTS[name].missing} is not installed")
    happened, found = compare(name)
    assert happened.compiles, "nothing was compiled"
    assert not found
