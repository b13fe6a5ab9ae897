"""A print that was left in the code."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    what = random.choice(("'shape', x.shape", "f'norm of {x.shape[1]} tokens'", "'mean', x.detach().mean()"))
    return Fault(
        kind="graph_break",
        cause="print_call",
        log=r"print",
        body=f"""
            print({what})  # HERE
            x = x * 1.0
        """,
        advice="print",
        mended={"body": "x = x * 1.0"},
    )
