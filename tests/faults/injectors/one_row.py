"""The last batch has a single row."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    full = random.randint(1, 3)
    rows = random.randint(2, 5)
    return Fault(
        kind="recompile",
        cause="size_0_1",
        log=r"size mismatch at index 0|<= .*size",
        shapes=((rows, 12),) * full + ((1, 12),),
        compile={"dynamic": True},
        lines="block",
        advice=r"drop|pad|row|size 1",
        mended={"shapes": ((rows, 12),) * (full + 1)},
    )
