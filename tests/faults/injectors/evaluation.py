"""An evaluation without gradients runs between two training steps."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 2)
    context = "torch.no_grad()"
    return Fault(
        kind="recompile",
        cause="grad_mode",
        log=r"grad_mode",
        step=f"""
            step.count = getattr(step, "count", 0) + 1
            if step.count == {moment} + 1:
                with {context}:
                    model(**batch)
            return default_step(model, batch)
        """,
        lines="block",
        alone=True,
        advice=r"warm|both|variant|expected|eval",
        mended={"step": "return default_step(model, batch)"},
    )
