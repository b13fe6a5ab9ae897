"""Long inputs are treated in another way: a length is compared with a number."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    bound = random.choice((16, 20, 24))
    short = random.sample(range(9, bound - 1), k=2)
    long = random.randint(bound + 3, 40)
    test = random.choice((f"x.shape[1] > {bound}", f"x.size(1) >= {bound}"))
    return Fault(
        kind="recompile",
        cause="size_specialized",
        log=rf"{bound}|{bound - 1}",
        body=f"""
            if {test}:  # HERE
                x = x * 0.999
        """,
        shapes=((2, short[0]), (2, short[1]), (2, long)),
        compile={"dynamic": True},
        advice=r"size|length|bound|pad|warm|variant",
        mended={"body": "x = x * 0.999"},
    )
