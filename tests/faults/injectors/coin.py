"""A block draws from Python's random numbers whether to add noise."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    draw = random.choice(("random.random()", "random.uniform(0.0, 1.0)", "random.randint(0, 9) / 10"))
    return Fault(
        kind="graph_break",
        cause="python_rng_branch",
        log=r"random",
        top="import random",
        body=f"""
            if {draw} < 0.5:  # HERE
                x = x * 1.01
        """,
        before_step="""
            import random

            random.seed(i)  # the same draws in torch's own process and in the check
        """,
        advice=r"torch\.rand|outside|tensor",
        mended={"top": "import torch", "body": "x = torch.where(torch.rand(()) < 0.5, x * 1.01, x)"},
    )
