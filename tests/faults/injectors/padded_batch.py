"""Some batches have padding, so that the blocks get a mask, and others have none."""

from random import Random

from tests.faults.architectures import DECODERS
from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    padded = random.randint(2, 5)
    mask = "mask = torch.ones_like(batch['input_ids'])"
    return Fault(
        kind="recompile",
        cause="none_vs_tensor",
        log=r"mask",
        step=f"""
            step.count = getattr(step, "count", 0) + 1
            {mask}
            if step.count > {moment}:
                mask[0, :{padded}] = 0
            return default_step(model, dict(batch, attention_mask=mask))
        """,
        lines="torch",
        models=DECODERS,
        alone=True,
        advice=r"always|mask|never",
        mended={
            "step": f"{mask}\nmask[0, :{padded}] = 0\nreturn default_step(model, dict(batch, attention_mask=mask))"
        },
    )
