"""A hook is put on a part of one block, not on the others of its class, before anything is compiled."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    part = random.choice(("next(block.children())", "block"))
    register, arguments, value = random.choice(
        (
            ("register_forward_hook", "module, args, output", "output"),
            ("register_forward_pre_hook", "module, args", "args"),
        )
    )
    name = random.choice(("probe_last", "features", "teacher_states"))

    def hook(watched: str) -> str:
        return f"""
            def {name}({arguments}):
                module.{name}_of = {value}

            if i == 0:
                for block in {watched}:
                    {part}.{register}({name})
        """

    return Fault(
        kind="error",
        cause="late_hook_ignored",
        log=r"compiled, \d+ eager",
        before_step=hook("blocks[-1:]"),
        watch=f"return sum(hasattr(module, '{name}_of') for module in model.modules())",
        lines="block",
        alone=True,
        advice=r"every block|guard",
        mended={"before_step": hook("blocks")},
    )
