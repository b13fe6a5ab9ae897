"""A branch on whether activations are large."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    test = random.choice(
        ("x.detach().abs().amax() > 1e6", "torch.isnan(x).any()", "x.detach().mean() < -100.0")
    )
    return Fault(
        kind="graph_break",
        cause="data_dependent_branch",
        log="[Dd]ata-dependent branching",
        top="import torch",
        body=f"""
            if {test}:  # HERE
                x = x * 0.5
        """,
        advice=r"where|mask|cond",
        mended={"body": f"x = torch.where({test}, x * 0.5, x)"},
    )
