"""The code asks whether a tensor is an inference tensor."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    return Fault(
        kind="graph_break",
        cause="unsupported_call",
        log=r"is_inference",
        body="""
            fresh = not x.is_inference()  # HERE
            x = x * (1.0 if fresh else 0.5)
        """,
        advice=r"outside|is_compiling|before",
        mended={"body": "x = x * 1.0"},
    )
