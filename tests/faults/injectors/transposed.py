"""A tensor that the modules hold has another memory layout from a step on."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    name = random.choice(("mixing", "table", "basis"))
    return Fault(
        kind="recompile",
        cause="stride",
        log=r"stride mismatch",
        setup=f"""
            for module in holders:
                module.{name} = torch.eye(32)
        """,
        body=f"x = x + 0.01 * (x @ self.{name})",
        before_step=f"""
            if i == {moment}:
                for module in holders:
                    module.{name} = torch.eye(32).t()
        """,
        lines="block",
        advice=r"contiguous",
        mended={"before_step": ""},
    )
