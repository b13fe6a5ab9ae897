"""A low-rank update that the modules hold has another rank from a step on."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    first, second = random.sample((3, 5, 6, 7, 9), 2)
    down, up = random.choice((("adapter_a", "adapter_b"), ("lora_down", "lora_up"), ("squeeze", "spread")))

    def pair(rank: int) -> str:
        return f"""
                module.{down} = torch.nn.Parameter(0.02 * torch.randn({rank}, 32))
                module.{up} = torch.nn.Parameter(0.02 * torch.randn(32, {rank}))
        """

    return Fault(
        kind="recompile",
        cause="parameter_shape",
        log=rf"\b({down}|{up})\b.*size mismatch",
        setup=f"""
            for module in holders:{pair(first)}""",
        body=f"x = x + (x @ self.{down}.t()) @ self.{up}.t()",
        before_step=f"""
            if i == {moment}:
                for module in holders:{pair(second).replace(chr(10), chr(10) + "    ")}""",
        lines="block",
        advice=r"rank|variant|leave",
        mended={"before_step": ""},
    )
