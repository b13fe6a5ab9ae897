"""A list that the modules keep grows with every call."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("history", "seen_norms", "losses", "records"))
    return Fault(
        kind="recompile",
        cause="container_len",
        log=rf"\b{name}\b",
        init=f"self.{name} = []",
        body=f"""
            self.{name}.append(x.shape[1])  # HERE
            x = x * (1.0 + 0.001 * min(len(self.{name}), 3))
        """,
        advice=r"outside|fixed|tensor|length",
        depth="one",
        shapes=((2, 12),) * 3,
        mended={"body": "x = x * 1.003"},
    )
