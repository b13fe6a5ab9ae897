"""The trainer passes a number to the blocks, which look a factor up with it."""

from random import Random

from tests.faults.architectures import PASSES_KEYWORDS
from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("stage", "level", "phase_id"))
    start = random.randint(0, 3)
    return Fault(
        kind="recompile",
        cause="int_arg",
        log=rf"\b{name}\b",
        top="FACTORS = tuple(1.0 + 0.01 * n for n in range(64))",
        body=f"x = x * FACTORS[kwargs.pop({name!r}, 0)]  # HERE",
        step=f"""
            step.count = getattr(step, "count", {start}) + 1
            return default_step(model, dict(batch, {name}=step.count))
        """,
        styles=("decorator",),
        models=PASSES_KEYWORDS,
        alone=True,
        advice=r"outside|tensor",
        mended={"step": f"return default_step(model, dict(batch, {name}=1))"},
    )
