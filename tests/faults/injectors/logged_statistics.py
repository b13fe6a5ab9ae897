"""The modules keep statistics in a tensor of a class of their own, beside what is trained."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("logged", "moments", "last_statistics"))
    kind = random.choice(("Paired", "Moments", "WithSpread"))
    return Fault(
        kind="error",
        cause="unused_subclass_output",
        log=rf"{kind}|subclass",
        top=f"""
            import torch
            from torch.utils import _pytree as pytree
            from torch.utils._python_dispatch import return_and_correct_aliasing


            class {kind}(torch.Tensor):
                @staticmethod
                def __new__(cls, value, spread):
                    return torch.Tensor._make_wrapper_subclass(
                        cls, value.shape, strides=value.stride(), dtype=value.dtype, requires_grad=value.requires_grad
                    )

                def __init__(self, value, spread):
                    self.value, self.spread = value, spread

                def __tensor_flatten__(self):
                    return ["value", "spread"], None

                @staticmethod
                def __tensor_unflatten__(inner, meta, outer_size, outer_stride):
                    return {kind}(inner["value"], inner["spread"])

                @classmethod
                def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                    kwargs = kwargs or {{}}
                    value = func(*pytree.tree_map_only({kind}, lambda t: t.value, args), **kwargs)
                    spread = func(*pytree.tree_map_only({kind}, lambda t: t.spread, args), **kwargs)
                    out = {kind}(value, spread) if isinstance(value, torch.Tensor) else value
                    return return_and_correct_aliasing(func, args, kwargs, out)
        """,
        setup=f"""
            for module in holders:
                module.statistics = home.{kind}(torch.ones(8), torch.zeros(8)).requires_grad_()
        """,
        body=f"self.{name} = self.statistics * 2  # HERE",
        lines="block",
        alone=True,
        advice=r"detach",
        mended={"body": f"self.{name} = self.statistics.detach() * 2"},
    )
