"""From a step on, a gradient norm goes through the graph before the loss does."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    moment = random.randint(1, 3)
    keep = random.choice(
        (
            "torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)",
            "loss.backward(retain_graph=True)",
        )
    )
    return Fault(
        kind="error",
        cause="donated_buffer",
        log=r"donated buffers",
        step=f"""
            step.count = getattr(step, "count", 0) + 1
            loss = model(**batch)[0].float().pow(2).mean()
            weights = [p for p in model.parameters() if p.requires_grad]
            if step.count > {moment}:
                {keep}
            loss.backward()
            return loss.detach()
        """,
        lines="block",
        alone=True,
        mended={"step": "return default_step(model, batch)"},
    )
