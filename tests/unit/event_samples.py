"""Details of events for tests: written as their JSON, refused where the product has no such key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cftdiag import details
from cftdiag.details import Detail


def detail(kind: str, facts: Mapping[str, Any]) -> Detail:
    """The detail of an event of that kind; a key that no event has fails the test that gives it."""
    read = details.read(kind, facts)
    unknown = set(facts) - set(details.plain(read)) - {key for key, value in facts.items() if value is None}
    assert not unknown, f"no {kind} has {sorted(unknown)}"
    return read
