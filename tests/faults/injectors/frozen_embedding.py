"""The embeddings are frozen in the middle of training."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    return Fault(
        kind="recompile",
        cause="requires_grad",
        log=r"requires_grad",
        before_step=f"""
            if i == {moment}:
                for name, parameter in model.named_parameters():
                    if not any(parameter is own for block in blocks for own in block.parameters()):
                        parameter.requires_grad_(False)
        """,
        lines="block",
        alone=True,
        advice=r"requires_grad|enable_input_require_grads|before",
        mended={"before_step": ""},
    )
