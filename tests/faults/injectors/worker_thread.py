"""The limit of recompiles is raised where the program starts, and the steps run in a thread of a worker."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    limit = random.choice((32, 64, 100))
    name = random.choice(("calls", "ticks"))
    return Fault(
        kind="error",
        cause="limit_not_visible_in_thread",
        log=r"recompile_limit|RecompileLimit",
        setup=f"torch._dynamo.config.recompile_limit = {limit}",
        init=f"self.{name} = 0",
        body=f"x = x * (1.0 + 0.001 / (1 + self.{name}))",
        before_step=f"""
            for module in holders:
                module.{name} = i
        """,
        step="""
            import threading

            done = []

            def work():
                try:
                    done.append(default_step(model, batch))
                except Exception as error:
                    done.append(error)

            worker = threading.Thread(target=work)
            worker.start()
            worker.join()
            if isinstance(done[0], Exception):
                raise done[0]
            return done[0]
        """,
        shapes=((2, 12),) * 11,
        compile={"fullgraph": True},
        lines="block",
        depth="all",
        also=(("recompile", "module_int_attr"), ("limit_hit", "module_int_attr")),
        alone=True,
        advice=r"recompile_limit=",
        mended={"step": "return default_step(model, batch)"},
    )
