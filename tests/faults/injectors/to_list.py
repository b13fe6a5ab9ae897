"""A few statistics of the hidden states are turned into a Python list."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    many = random.randint(2, 4)
    return Fault(
        kind="graph_break",
        cause="tensor.tolist",
        log=r"tolist|_local_scalar_dense",
        body=f"""
            levels = x.detach().abs().mean(dim=(0, 1))[:{many}].tolist()  # HERE
            x = x * (1.0 + 0.001 * sum(levels))
        """,
        advice="tensor",
        mended={"body": f"x = x * (1.0 + 0.001 * x.detach().abs().mean(dim=(0, 1))[:{many}].sum())"},
    )
