"""A counter in a block that is checkpointed outside of its compiled call: the recomputation is a call, too."""

from random import Random

from tests.faults.fault import Fault

CHECKPOINTED = """
    from torch.utils.checkpoint import checkpoint

    def checkpointed(call):
        def again(self, *args, **kwargs):
            return checkpoint(call, self, *args, use_reentrant=False, **kwargs)

        return again

    for kind in {type(block) for block in blocks}:
        kind.__call__ = checkpointed(kind.__call__)
"""
"""Checkpointing outside of the blocks' compiled calls."""


def fault(random: Random) -> Fault:
    name = random.choice(("calls", "seen", "progress"))
    ramp = random.choice((f"min(1.0, self.{name} / 100)", f"(1.0 - 0.9**self.{name})"))
    return Fault(
        kind="error",
        cause="ac_recompute_other_graph",
        log=r"different number of tensors|different metadata",
        setup=CHECKPOINTED,
        init=f"self.{name} = 0",
        body=f"""
            self.{name} += 1
            x = x + x.sin().relu() * {ramp}
        """,
        shapes=((2, 12),) * random.randint(8, 10),
        lines="block",
        styles=("block", "helper", "mixin", "library"),
        also=(("recompile", "module_int_attr"), ("limit_hit", "module_int_attr")),
        alone=True,
        advice=r"recompile|inside|limit",
        mended={"init": f"self.{name} = torch.zeros(())", "body": "x = x + x.sin().relu() * 0.5"},
    )
