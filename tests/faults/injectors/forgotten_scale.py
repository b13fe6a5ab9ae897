"""A path for compiled code forgets a factor: nothing raises, and the loss is another."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    factor = random.choice((0.5, 0.8, 1.5))
    return Fault(
        kind="numerics",
        cause="silent_wrong_numerics",
        log=r"loss",
        top="import torch",
        body=f"""
            if not torch.compiler.is_compiling():
                x = x * {factor}
        """,
        lines="none",
        alone=True,
        advice=r"eager|compile",
        mended={"body": f"x = x * {factor}"},
    )
