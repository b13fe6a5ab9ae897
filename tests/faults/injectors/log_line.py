"""A library logs what it does with every call."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    level = random.choice(("info", "debug", "warning"))
    name = random.choice(("__name__", "'train.blocks'"))
    return Fault(
        kind="graph_break",
        cause="logging_call",
        log="logging",
        top=f"import logging\n\nlogger = logging.getLogger({name})",
        body=f"""
            logger.{level}("hidden states of shape %s", tuple(x.shape))  # HERE
            x = x * 1.0
        """,
        advice=r"log",
        mended={"body": "x = x * 1.0"},
    )
