"""The first batch has as many rows as tokens."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    side = random.choice((5, 6, 7, 9))
    others = random.sample([n for n in range(10, 26) if n not in (16,)], k=2)
    rows = random.choice([n for n in (3, 5, 6, 7) if n != side])
    return Fault(
        kind="recompile",
        cause="duck_shape",
        log=r"size\(\)\[0\].*==.*size\(\)\[1\]|size\(\)\[1\].*==.*size\(\)\[0\]",
        shapes=((side, side), (side, others[0]), (rows, others[1])),
        compile={"dynamic": True},
        lines="block",
        alone=True,
    )
