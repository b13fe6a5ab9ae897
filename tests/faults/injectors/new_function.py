"""The trainer gives the modules a new function of its own closure for a step."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 2)
    name = random.choice(("score_fn", "transform", "post_process"))
    return Fault(
        kind="recompile",
        cause=("closure_identity",),
        log=rf"\b{name}\b",
        top="""
            def make(bounds):
                def apply(states):
                    return states * bounds[-1]

                return apply
        """,
        setup=f"""
            for module in holders:
                module.{name} = home.make([1.0])
        """,
        body=f"x = self.{name}(x)  # HERE",
        before_step=f"""
            if i >= {moment}:
                for module in holders:
                    module.{name} = home.make([1.0] * (i + 1))
        """,
        advice=r"once|same function|outside|tensor",
        mended={"before_step": ""},
    )
