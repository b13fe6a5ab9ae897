"""Somebody ended the graph on purpose, to look at something, and left it."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    call = random.choice(("torch._dynamo.graph_break()", "torch._dynamo.graph_break('look here')"))
    return Fault(
        kind="graph_break",
        cause="generic_break",
        log=r"graph_break",
        top="import torch",
        body=f"""
            {call}  # HERE
            x = x * 1.0
        """,
        advice=r"remove|delete|take out|graph_break",
        mended={"body": "x = x * 1.0"},
    )
