"""The random state is set inside the block, so that noise repeats."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    call = random.choice(("torch.manual_seed(1)", "torch.random.manual_seed(7)", "torch.seed()"))
    return Fault(
        kind="graph_break",
        cause="rng_seed_call",
        log=r"seed|random",
        top="import torch",
        body=f"""
            {call}  # HERE
            x = x + 0.001 * torch.rand_like(x)
        """,
        advice=r"seed|generator|outside",
        mended={"body": "x = x + 0.001 * torch.rand_like(x)"},
    )
