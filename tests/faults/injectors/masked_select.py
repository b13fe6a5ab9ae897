"""Positions are picked by their values."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    pick = random.choice(
        (
            "picked = (x.detach()[..., 0] > 0).nonzero()",
            "picked = torch.nonzero(x.detach()[..., 0] > 0)",
            "picked = x.detach()[x.detach() > 0.0]",
            "picked = torch.unique(x.detach()[..., 0])",
        )
    )
    return Fault(
        kind="graph_break",
        cause="dynamic_output_shape",
        log=r"Dynamic shape operator|[Dd]ynamic.output.shape",
        top="import torch",
        body=f"""
            {pick}  # HERE
            x = x + 0.0 * picked.float().mean()
        """,
        advice=r"mask|capture_dynamic_output_shape_ops|fixed|dense",
        mended={"body": "x = x + 0.0 * (x.detach()[..., 0] > 0).float().mean()"},
    )
