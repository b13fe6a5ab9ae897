"""A function that somebody took out of compilation."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    decorator = random.choice(
        ("@torch.compiler.disable", "@torch.compiler.disable(recursive=True)", "@torch._dynamo.disable")
    )
    return Fault(
        kind="graph_break",
        cause="disabled_function",
        log=r"torch\.compiler\.disable",
        top=f"""
            import torch


            {decorator}
            def track(states):
                return states * 1.0
        """,
        body="""
            x = track(x)  # HERE
        """,
        advice=r"disable",
        mended={"top": "def track(states):\n    return states * 1.0"},
    )
