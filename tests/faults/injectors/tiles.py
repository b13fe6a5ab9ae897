"""Tokens are reshaped into tiles when their number divides."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    tile = random.choice((4, 8))
    good = random.sample([n for n in range(12, 50) if n % tile == 0 and n != 32], k=2)
    bad = random.choice([n for n in range(13, 50) if n % tile])
    return Fault(
        kind="recompile",
        cause="shape_divisibility",
        log=rf"% {tile}|Mod\(",
        body=f"""
            if x.shape[1] % {tile} == 0:  # HERE
                x = x * 1.001
        """,
        shapes=((2, good[0]), (2, good[1]), (2, bad)),
        compile={"dynamic": True},
        advice=r"pad|multiple",
        mended={"shapes": ((2, good[0]), (2, good[1]), (2, good[0]))},
    )
