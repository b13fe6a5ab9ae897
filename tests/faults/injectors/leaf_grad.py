"""A tensor inside the block is told to need gradients."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    return Fault(
        kind="graph_break",
        cause="requires_grad_in_graph",
        log=r"requires_grad",
        body="""
            probe = x.detach()
            probe.requires_grad_(True)  # HERE
            x = x + 0.0 * probe
        """,
        advice=r"requires_grad|outside|input",
        mended={"body": "x = x + 0.0 * x.detach()"},
    )
