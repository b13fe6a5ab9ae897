"""The width of the hidden states is marked dynamic, and the weights fix it."""

from random import Random

from tests.faults.architectures import PASSES_KEYWORDS
from tests.faults.fault import Fault


def fault(random: Random) -> Fault:
    name = random.choice(("mark", "free_sizes"))
    return Fault(
        kind="error",
        cause="constraint_violation",
        log=r"Constraint",
        setup=f"""
            def {name}(module, args, output):
                torch._dynamo.mark_dynamic(output, 2)
            model.get_input_embeddings().register_forward_hook({name})
        """,
        lines="block",
        models=PASSES_KEYWORDS,
        alone=True,
        advice=r"mark_dynamic|maybe_mark",
        mended={"setup": ""},
    )
