"""What the modules keep in a dictionary is a plain tensor first and a Parameter later."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    key = random.choice(("prior", "scale", "offset"))
    plain, other = "torch.ones(32)", "torch.nn.Parameter(torch.ones(32), requires_grad=False)"
    if random.random() < 0.3:
        plain, other = other, plain
    return Fault(
        kind="recompile",
        cause="tensor_type",
        log=r"extras.*(tensor type|type_id)",
        setup=f"""
            for module in holders:
                module.extras = {{{key!r}: {plain}}}
        """,
        body=f"x = x + 0.01 * self.extras[{key!r}].mean()",
        before_step=f"""
            if i == {moment}:
                for module in holders:
                    module.extras[{key!r}] = {other}
        """,
        lines="block",
        advice=r"class|type|view_as|unwrap",
        mended={"before_step": ""},
    )
