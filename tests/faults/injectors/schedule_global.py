"""A global of the module's file follows a schedule that the trainer sets before a step."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("TEMPERATURE", "WARMUP_SCALE", "NOISE_LEVEL"))
    moment = random.randint(1, 3)
    return Fault(
        kind="recompile",
        cause="global_value",
        log=name,
        top=f"{name} = 1.0",
        body=f"x = x * {name}  # HERE",
        before_step=f"""
            if i == {moment}:
                home.{name} = 0.5
        """,
        advice="tensor",
        mended={
            "top": f"{name} = torch.ones(())",
            "before_step": f"if i == {moment}:\n    home.{name}.fill_(0.5)",
        },
    )
