"""Few batch shapes that stand for all that are trained. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

#: Shapes that are counted at most: code is generated for each.
MOST = 4

Shape = tuple[int, int, float]
"""(rows, length, how often)."""


def representatives(shapes: Sequence[Shape], most: int = MOST) -> list[Shape]:
    """At most ``most`` shapes for all: groups of equal shares of the tokens, by size, each stood for by its largest
    shape, as often as gives the group's tokens. The largest of all is among them: memory is that one's.
    """
    often: dict[tuple[int, int], float] = {}
    for rows, length, count in shapes:
        often[rows, length] = often.get((rows, length), 0) + count
    ordered = sorted(often, key=lambda at: (at[0] * at[1], at))
    if len(ordered) <= most:
        return [(*at, often[at]) for at in ordered]
    total = sum(rows * length * often[rows, length] for rows, length in ordered)
    found: list[Shape] = []
    tokens = done = 0.0
    for number, (rows, length) in enumerate(ordered):
        tokens += rows * length * often[rows, length]
        done += rows * length * often[rows, length]
        if done >= total * (len(found) + 1) / most or number == len(ordered) - 1:
            found.append((rows, length, tokens / (rows * length)))
            tokens = 0.0
    return found
