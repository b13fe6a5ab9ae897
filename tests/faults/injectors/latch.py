"""A module sets something up in its first call."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("cached_bias", "running", "_state", "ema"))
    return Fault(
        kind="recompile",
        cause="first_call_latch",
        log=rf"\b{name}\b",
        init=f"self.{name} = None",
        body=f"""
            if self.{name} is None:  # HERE
                self.{name} = x.detach().mean(dim=(0, 1))
            x = x + 0.01 * self.{name}
        """,
        advice=r"__init__|before|first call|warm",
        mended={"init": f"self.{name} = torch.zeros(())"},
    )
