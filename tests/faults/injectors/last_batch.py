"""The last batch of an epoch has fewer rows."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    rows, rest = random.choice(((4, 3), (6, 5), (5, 2)))
    full = random.randint(1, 3)
    return Fault(
        kind="recompile",
        cause="batch_dim",
        log="size mismatch at index 0",
        shapes=((rows, 12),) * full + ((rest, 12),),
        compile={},
        lines="block",
    )
