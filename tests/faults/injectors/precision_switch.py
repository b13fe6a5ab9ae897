"""A precision is switched on for the forward alone, and a checkpointed block is computed again without it."""

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
    low = random.choice(("torch.bfloat16", "torch.float16"))
    name = random.choice(("compute_dtype", "low_precision"))
    flag = name == "low_precision"
    on, off = ("True", "False") if flag else (low, "torch.float32")
    dtype = f"({low} if self.{name} else torch.float32)" if flag else f"self.{name}"
    step = f"""
        for module in model.modules():
            if hasattr(module, "{name}"):
                module.{name} = {on}
        loss = model(**batch)[0].float().pow(2).mean()
        for module in model.modules():
            if hasattr(module, "{name}"):
                module.{name} = {off}
        loss.backward()
        return loss.detach()
    """
    return Fault(
        kind="error",
        cause="ac_dtype_mismatch",
        log=r"different metadata",
        setup=CHECKPOINTED,
        init=f"self.{name} = {on}",
        body=f"x = x + 0.01 * x.to({dtype}).tanh().to(x.dtype)",
        step=step,
        lines="block",
        styles=("block", "helper", "mixin", "library"),
        also=(("recompile", "module_bool_attr" if flag else "module_str_attr"),),
        alone=True,
        fails_eager=True,
        advice=r"as it is|forward and|precision",
        mended={"step": "return default_step(model, batch)"},
    )
