"""A flag of the modules is switched during training."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("merged", "use_gate", "frozen", "disable_adapter"))
    moment = random.randint(1, 3)
    return Fault(
        kind="recompile",
        cause="module_bool_attr",
        log=rf"\b{name}\b",
        init=f"self.{name} = False",
        body=f"""
            if self.{name}:  # HERE
                x = x * 1.5
        """,
        before_step=f"""
            if i == {moment}:
                for module in holders:
                    module.{name} = True
        """,
        advice=r"warm|both|variant|before training|once|tensor",
        mended={
            "init": f"self.register_buffer({name!r}, torch.zeros((), dtype=torch.bool))",
            "body": f"x = torch.where(self.{name}, x * 1.5, x)",
            "top": "import torch",
            "before_step": f"if i == {moment}:\n    for module in holders:\n        module.{name}.fill_(True)",
        },
    )
