"""A helper object is replaced by one of another class."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    name = random.choice(("scaler", "router_policy", "gate"))
    return Fault(
        kind="recompile",
        cause="helper_class_identity",
        log=rf"\b{name}\b",
        top="""
            class Plain:
                def apply(self, states):
                    return states * 1.0


            class Damped:
                def apply(self, states):
                    return states * 0.9
        """,
        setup=f"""
            for module in holders:
                module.{name} = home.Plain()
        """,
        body=f"x = self.{name}.apply(x)  # HERE",
        before_step=f"""
            if i == {moment}:
                for module in holders:
                    module.{name} = home.Damped()
        """,
        advice=r"one class|same class|once|before|module",
        mended={"before_step": ""},
    )
