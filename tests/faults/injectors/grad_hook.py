"""A backward hook watches a part of each block."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    return Fault(
        kind="graph_break",
        cause="module_backward_hook",
        log=r"backwards? hook",
        setup="""
            def watch(module, grad_input, grad_output):
                module.seen_grad = True

            for block in blocks:
                next(block.children()).register_full_backward_hook(watch)
        """,
        lines="block",
        alone=True,
        advice=r"hook",
        mended={"setup": ""},
    )
