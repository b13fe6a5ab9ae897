"""Somebody's own call of the blocks goes to their forward, past what compiling them put into the call."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("timed", "counted", "called"))
    setup = f"""
        def {name}(self, *args, **kwargs):
            self.times_{name} = getattr(self, "times_{name}", 0) + 1
            return CALL(*args, **kwargs)

        for kind in {{type(block) for block in blocks}}:
            kind.__call__ = {name}
    """
    return Fault(
        kind="error",
        cause="compiled_region_not_reached",
        log=r"never called",
        setup=setup.replace("CALL(", "self.forward("),
        lines="none",
        alone=True,
        advice=r"forward|call",
        mended={"setup": setup.replace("CALL(", "torch.nn.Module.__call__(self, ")},
    )
