"""The model is cut to fewer blocks by its config, after all of them were made and compiled."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    return Fault(
        kind="error",
        cause="compiled_region_not_reached",
        log=r"never called",
        setup="model.config.num_hidden_layers = len(blocks) - 1",
        lines="none",
        models=(
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "olmo2",
            "granite",
            "cohere",
            "gemma",
            "glm",
            "phi",
            "phi3",
            "helium",
            "smollm3",
            "starcoder2",
        ),
        alone=True,
        advice=r"layers|early exit",
        mended={"setup": ""},
    )
