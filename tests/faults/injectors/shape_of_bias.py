"""A bias that the modules hold has one more dimension from a step on."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    name = random.choice(("bias", "prior", "shift"))
    name = f"extra_{name}"
    return Fault(
        kind="recompile",
        cause="rank_change",
        log=r"rank mismatch",
        setup=f"""
            for module in holders:
                module.{name} = torch.ones(32)
        """,
        body=f"x = x + 0.01 * self.{name}",
        before_step=f"""
            if i == {moment}:
                for module in holders:
                    module.{name} = torch.ones(1, 32)
        """,
        lines="block",
        advice=r"dimension|rank|unsqueeze|shape",
        mended={"before_step": ""},
    )
