"""An operator of one's own, whose stand-in for tracing knows two dimensions only."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("fast_scale", "fused_gain", "soft_gain"))
    top = f"""
        import torch


        @torch.library.custom_op("own::{name}", mutates_args=())
        def {name}(states: torch.Tensor) -> torch.Tensor:
            return states * 1.01


        @{name}.register_fake
        def _(states):
            FAKE


        {name}.register_autograd(lambda ctx, grad: grad * 1.01)
    """
    return Fault(
        kind="error",
        cause="fullgraph_error",
        log=r"unpack",
        top=top.replace(
            "FAKE", "rows, width = states.shape\n            return states.new_empty(rows, width)"
        ),
        body=f"x = {name}(x)  # HERE",
        alone=True,
        advice=r"register_fake",
        mended={"top": top.replace("FAKE", "return torch.empty_like(states)")},
    )
