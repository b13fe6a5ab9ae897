"""A table that the modules hold gets another dtype."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    name = random.choice(("bias_table", "offsets", "damping"))
    return Fault(
        kind="recompile",
        cause="dtype",
        log=r"dtype mismatch",
        setup=f"""
            for module in holders:
                module.{name} = torch.ones(32)
        """,
        body=f"x = x * self.{name}.to(x.dtype)",
        before_step=f"""
            if i == {moment}:
                for module in holders:
                    module.{name} = module.{name}.double()
        """,
        lines="block",
        advice=r"dtype|cast",
        mended={"before_step": ""},
    )
