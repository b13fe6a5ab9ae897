"""Blocks take turns with two sizes of a window."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("window", "stride_size", "chunk_width"))
    one, other = random.sample((3, 4, 5, 6), k=2)
    return Fault(
        kind="recompile",
        cause="per_layer_attr",
        log=rf"\.{name} == ",
        init=f"self.{name} = {one} if index % 2 else {other}",
        body=f"""
            x = x + 0.01 * x[:, : self.{name}].mean(dim=1, keepdim=True)  # HERE
        """,
        depth="all",
        styles=("block", "helper", "mixin", "decorator", "library"),
        advice=r"isolate|expected|variant|limit|kind|class",
        mended={"init": f"self.{name} = {one}"},
    )
