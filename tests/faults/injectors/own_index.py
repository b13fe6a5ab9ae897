"""Each block scales by its own index."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("layer_idx", "index", "depth", "block_id"))
    return Fault(
        kind="recompile",
        cause="layer_idx",
        log=rf"\.{name} == ",
        init=f"self.{name} = index",
        body=f"x = x * (1.0 + 0.01 * self.{name})  # HERE",
        depth="all",
        styles=("block", "helper", "mixin", "decorator", "library"),
        advice=r"tensor|buffer|__init__",
        mended={
            "init": f"self.register_buffer({name!r}, torch.tensor(float(index)))",
        },
    )
