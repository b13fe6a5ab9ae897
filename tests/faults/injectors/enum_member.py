"""An enum member that the modules hold is another one from a step on."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    name = random.choice(("policy", "activation_kind", "router"))
    return Fault(
        kind="recompile",
        cause=("object_identity", "helper_class_identity"),
        log=rf"\b{name}\b",
        top="""
            import enum


            class Kind(enum.Enum):
                PLAIN = 1
                DAMPED = 2
        """,
        setup=f"""
            for module in holders:
                module.{name} = home.Kind.PLAIN
        """,
        body=f"x = x * (1.01 if self.{name} is Kind.PLAIN else 0.99)  # HERE",
        before_step=f"""
            if i == {moment}:
                for module in holders:
                    module.{name} = home.Kind.DAMPED
        """,
        advice=r"once|one variant|same object|warm",
        mended={"before_step": ""},
    )
