"""A module counts its own calls and scales by the count."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("calls", "num_updates", "seen", "warmup_step"))
    step = random.choice((1, 2, 5))
    return Fault(
        kind="recompile",
        cause="module_int_attr",
        log=rf"{name} == ",
        init=f"self.{name} = 0",
        body=f"""
            self.{name} += {step}  # HERE
            x = x * min(1.0, self.{name} / 100 + 0.5)
        """,
        advice="tensor",
        mended={
            "init": f"self.register_buffer({name!r}, torch.zeros((), dtype=torch.long))",
            "body": f"""
                self.{name} += {step}
                x = x * (self.{name} / 100 + 0.5).clamp(max=1.0)
            """,
        },
    )
