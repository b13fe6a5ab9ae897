"""Every batch has another length, and shapes are static."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    lengths = random.sample(range(7, 30), k=random.randint(3, 4))
    return Fault(
        kind="recompile",
        cause="seq_len",
        log="size mismatch at index 1",
        shapes=tuple((2, n) for n in lengths),
        compile={"dynamic": False},
        lines="block",
    )
