"""A value is read in a block that is checkpointed."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    reads = random.choice(("x.detach().abs().mean().item()", "float(x.detach().norm())"))
    return Fault(
        kind="graph_break",
        cause="graph_break_in_checkpoint",
        log=r"Tensor\.item\(\)|checkpoint",
        setup="model.gradient_checkpointing_enable({'use_reentrant': False})",
        body=f"""
            level = {reads}  # HERE
            x = x * (1.0 + 0.001 * level)
        """,
        alone=True,
        also=(("perf", "graph_runs_eager"),),  # a block that is one checkpoint has no graph left
        styles=("block", "helper", "mixin", "library"),
        advice=r"remove|tensor|outside|inside",
        mended={"body": "x = x * (1.0 + 0.001 * x.detach().abs().mean())"},
    )
