"""One decorator is put around the forward of every block, and each block has a class of its own."""

from random import Random

from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("checked", "measured", "traced"))
    return Fault(
        kind="recompile",
        cause="shared_code_object",
        log=r"___check_(obj|type)_id|__code__",
        setup=f"""
            def {name}(forward):
                def inner(*args, **kwargs):
                    return forward(*args, **kwargs)
                return inner
            for number, block in enumerate(blocks):
                kind = type(block)
                block.__class__ = type(f"{{kind.__name__}}{{number}}", (kind,), {{"forward": {name}(kind.forward)}})
        """,
        lines="torch",
        alone=True,
        advice=r"cache of its own|limit|outside",
        mended={"setup": ""},
    )
