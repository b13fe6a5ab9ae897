"""The model is put into evaluation mode for a step."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    return Fault(
        kind="recompile",
        cause="training_flag",
        log=r"\.training",
        body="""
            if self.training:  # HERE
                x = x * 1.001
        """,
        before_step=f"""
            model.train(i != {moment})
        """,
        lines="block",
        styles=("block", "helper", "mixin", "decorator", "library", "submodule"),
        alone=True,
        advice=r"train\(\)|eval\(\)|warm|both|variant",
        mended={"before_step": ""},
    )
