"""The optimizer's step is compiled and its learning rate follows a schedule."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    optimizer = random.choice(
        ("torch.optim.AdamW({0}, lr=1e-3, foreach=False)", "torch.optim.SGD({0}, lr=1e-2, foreach=False)")
    ).format("[next(model.parameters())]")
    schedule = "torch.optim.lr_scheduler.LambdaLR(model.own_optimizer, lambda step: 1 / (step + 1))"
    return Fault(
        kind="recompile",
        cause="optimizer_lr_float",
        log=r"\blr\b",
        setup=f"""
            model.own_optimizer = {optimizer}
            model.own_schedule = {schedule}
            model.own_step = torch.compile(model.own_optimizer.step, backend="eager")
        """,
        step="""
            loss = default_step(model, batch)
            model.own_step()
            model.own_schedule.step()
            return loss
        """,
        lines="block",
        also=(("graph_break", "unsupported_call"),),  # torch's own wrapper of a compiled step
        alone=True,
        advice=r"lr=torch\.tensor|tensor",
        mended={
            "setup": f"""
                model.own_optimizer = {optimizer.replace("1e-3", "torch.tensor(1e-3)").replace("1e-2", "torch.tensor(1e-2)")}
                model.own_schedule = {schedule}
                model.own_step = torch.compile(model.own_optimizer.step, backend="eager")
            """
        },
    )
