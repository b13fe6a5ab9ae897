"""A hook is registered on a part of the blocks after the first steps, when the blocks are compiled."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    watched = random.choice(("blocks", "blocks[-1:]"))
    part = random.choice(("next(block.children())", "block"))
    register, arguments, value = random.choice(
        (
            ("register_forward_hook", "module, args, output", "output"),
            ("register_forward_pre_hook", "module, args", "args"),
        )
    )
    name = random.choice(("probe", "capture", "activations"))

    def hook(watched: str, moment: int) -> str:
        return f"""
            def {name}({arguments}):
                module.{name}_of = {value}

            if i == {moment}:
                for block in {watched}:
                    {part}.{register}({name})
        """

    return Fault(
        kind="error",
        cause="late_hook_ignored",
        log=r"compiled, \d+ eager",
        before_step=hook(watched, moment),
        watch=f"return sum(hasattr(module, '{name}_of') for module in model.modules())",
        lines="block",
        alone=True,
        advice=r"before|guard|reset",
        mended={"before_step": hook("blocks", 0)},
    )
