"""A tensor's value is read in the middle of a block."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    reads = random.choice(
        ("x.detach().abs().mean().item()", "x.detach().float().amax().item()", "float(x.detach().norm())")
    )
    return Fault(
        kind="graph_break",
        cause="tensor.item",
        log=r"Tensor\.item\(\)|_local_scalar_dense",
        body=f"""
            level = {reads}  # HERE
            x = x * (1.0 + 0.001 * level)
        """,
        advice="tensor",
        mended={
            "body": """
                level = x.detach().abs().mean()
                x = x * (1.0 + 0.001 * level)
            """
        },
    )
