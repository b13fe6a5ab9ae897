"""The stance that a comparison with eager needed was left on."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    where = random.choice(("setup", "before_step"))
    stance = 'torch.compiler.set_stance("force_eager")'
    return Fault(
        kind="perf",
        cause="graph_runs_eager",
        log=r"no graph",
        lines="none",
        alone=True,
        advice=r"set_stance|force_eager|fullgraph",
        mended={"setup": "", "before_step": ""},
        **{where: stance},
    )
