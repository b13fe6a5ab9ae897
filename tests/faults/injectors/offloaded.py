"""What autograd saves is offloaded by hooks around the whole forward."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    pack = random.choice(("tensor.detach().clone()", "tensor.to('cpu', copy=True)"))
    return Fault(
        kind="perf",
        cause="saved_tensor_hooks_whole_graph",
        log=r"compiled, \d+ eager",
        setup="model.packed = []",
        step=f"""
            def pack(tensor):
                model.packed.append(tensor.shape)
                return {pack}

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
                loss = model(**batch)[0].float().pow(2).mean()
            loss.backward()
            return loss.detach()
        """,
        watch="return len(model.packed)",
        lines="none",
        alone=True,
        advice=r"checkpoint|between blocks|smaller",
        mended={"step": "return default_step(model, batch)"},
    )
