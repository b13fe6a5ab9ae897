"""An observer watches a module inside each block by a hook that is kept out of compilation."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    register, arguments = random.choice(
        (("register_forward_pre_hook", "module, args"), ("register_forward_hook", "module, args, output"))
    )
    name = random.choice(("observe", "record_inputs", "offload"))
    return Fault(
        kind="graph_break",
        cause="disabled_hook",
        log=r"torch\.compiler\.disable",
        setup=f"""
            def {name}({arguments}):
                module.seen = getattr(module, "seen", 0) + 1
            for block in blocks:
                next(block.children()).{register}(torch.compiler.disable({name}))
        """,
        lines="block",
        alone=True,
        advice=r"hook",
        mended={"setup": ""},
    )
