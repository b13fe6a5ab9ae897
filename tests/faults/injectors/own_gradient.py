"""An autograd.Function whose forward reads a value."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    return Fault(
        kind="graph_break",
        cause="autograd_function",
        log=r"autograd\.Function|HigherOrderOperator|Tensor\.item\(\)",
        top="""
            import torch


            class Clip(torch.autograd.Function):
                @staticmethod
                def forward(ctx, states):
                    ctx.top = states.abs().max().item()  # HERE
                    return states.clone()

                @staticmethod
                def backward(ctx, grad):
                    return grad.clamp(-1.0 - ctx.top, 1.0 + ctx.top)
        """,
        body="x = Clip.apply(x)",
        advice=r"custom_op|tensor|triton_op",
        mended={
            "top": """
                import torch


                class Clip(torch.autograd.Function):
                    @staticmethod
                    def forward(ctx, states):
                        ctx.save_for_backward(states.abs().max())
                        return states.clone()

                    @staticmethod
                    def backward(ctx, grad):
                        (top,) = ctx.saved_tensors
                        return torch.minimum(torch.maximum(grad, -1.0 - top), 1.0 + top)
            """
        },
    )
