"""A class attribute that all modules read is changed by the trainer."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("eps_scale", "capacity", "gate"))
    moment = random.randint(1, 3)
    return Fault(
        kind="recompile",
        cause="class_attr",
        log=rf"\b{name}\b",
        top=f"""
            class Settings:
                {name} = 1.0
        """,
        body=f"x = x * Settings.{name}  # HERE",
        before_step=f"""
            if i == {moment}:
                home.Settings.{name} = 0.5
        """,
        advice=r"tensor|once|instance|pass|before",
        mended={
            "top": f"import torch\n\n\nclass Settings:\n    {name} = torch.ones(())",
            "before_step": f"if i == {moment}:\n    home.Settings.{name}.fill_(0.5)",
        },
    )
