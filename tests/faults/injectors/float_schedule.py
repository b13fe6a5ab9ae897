"""A float of the module follows a schedule."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("scale", "alpha", "drop_rate", "temperature"))
    moment = random.randint(1, 2)
    return Fault(
        kind="recompile",
        cause="module_float_attr",
        log=rf"\b{name}\b",
        init=f"self.{name} = 1.0",
        body=f"x = x * self.{name}  # HERE",
        before_step=f"""
            if i >= {moment}:
                for module in holders:
                    module.{name} = 1.0 / (1 + i)
        """,
        advice="tensor|buffer",
        mended={
            "init": f"self.register_buffer({name!r}, torch.ones(()))",
            "before_step": f"if i >= {moment}:\n    for module in holders:\n        module.{name}.fill_(1.0 / (1 + i))",
        },
    )
