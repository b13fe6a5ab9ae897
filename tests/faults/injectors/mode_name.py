"""A string of the modules names how they normalise, and changes."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("mode", "impl", "norm_kind"))
    one, other = random.sample(("plain", "scaled", "centred", "fused"), k=2)
    moment = random.randint(1, 3)
    return Fault(
        kind="recompile",
        cause="module_str_attr",
        log=rf"\b{name}\b",
        init=f"self.{name} = {one!r}",
        body=f"""
            if self.{name} == {one!r}:  # HERE
                x = x * 1.01
        """,
        before_step=f"""
            if i == {moment}:
                for module in holders:
                    module.{name} = {other!r}
        """,
        advice=r"once|before|fix|keep|constant|set",
        mended={"before_step": "", "init": f"self.{name} = {other!r}"},
    )
