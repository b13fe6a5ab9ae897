"""A gradient penalty differentiates twice."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    return Fault(
        kind="error",
        cause="double_backward",
        log=r"torch.compile with aot_autograd does not currently support double backward",
        step="""
            values = model(**batch)[0].float()
            inner = values.pow(2).mean()
            weights = [p for p in model.parameters() if p.requires_grad]
            grads = torch.autograd.grad(inner, weights, create_graph=True, allow_unused=True)
            loss = inner + 0.01 * sum(g.pow(2).sum() for g in grads if g is not None)
            loss.backward()
            return loss.detach()
        """,
        lines="block",
        setup="model.set_attn_implementation('eager')  # SDPA has no second derivative on a CPU",
        alone=True,
        advice=r"eager|double|second|aot",
        mended={"step": "return default_step(model, batch)"},
    )
