"""Deterministic algorithms are asked for in the middle of training."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    call = random.choice(
        (
            "torch.use_deterministic_algorithms(i == {0})",
            "torch.set_default_dtype(torch.float64 if i == {0} else torch.float32)",
        )
    )
    return Fault(
        kind="recompile",
        cause="global_state",
        log=r"GLOBAL_STATE changed",
        before_step=call.format(moment),
        lines="block",
        alone=True,
        advice=r"once|before|keep|same",
        mended={"before_step": ""},
    )
