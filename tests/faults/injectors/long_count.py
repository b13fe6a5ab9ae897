"""A counter runs until torch gives up."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("tick", "calls", "position"))
    return Fault(
        kind="limit_hit",
        cause="module_int_attr",
        log=rf"{name} == ",
        init=f"self.{name} = 0",
        body=f"""
            self.{name} += 1  # HERE
            x = x * min(1.0, self.{name} / 100 + 0.5)
        """,
        shapes=((2, 12),) * 10,
        advice="tensor",
        alone=True,
        depth="all",
        mended={
            "init": f"self.register_buffer({name!r}, torch.zeros((), dtype=torch.long))",
            "body": f"""
                self.{name} += 1
                x = x * (self.{name} / 100 + 0.5).clamp(max=1.0)
            """,
        },
    )
