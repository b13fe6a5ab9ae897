"""The model is trained with its cache of keys and values on, as its config has it."""

from random import Random

from tests.faults.architectures import DECODERS
from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    return Fault(
        kind="recompile",
        cause="kv_cache",
        log=r"past_key_values|layer_past|cache",
        setup="model.config.use_cache = True",
        lines="torch",
        models=DECODERS,
        alone=True,
        advice=r"use_cache",
        mended={"setup": "model.config.use_cache = False"},
    )
