"""A table is looked up by the length in a string."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    lengths = random.sample([n for n in range(9, 40) if n != 32], k=3)  # 32 is the width of the states
    return Fault(
        kind="recompile",
        cause="size_specialized",
        log=r"size",
        top="TABLES = {}",
        body="""
            key = f"rope_{x.shape[1]}"  # HERE
            x = x * TABLES.get(key, 1.0)
        """,
        shapes=tuple((2, n) for n in lengths),
        compile={"dynamic": True},
        lines="here",
        advice=r"size|constant|largest|slice|key|string",
        mended={"body": "x = x * 1.0"},
    )
