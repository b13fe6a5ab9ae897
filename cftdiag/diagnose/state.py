"""Recompiles by torch's global state."""

from __future__ import annotations

import re

from cftdiag.diagnose import references as ref
from cftdiag.diagnose.cause import Cause, example
from cftdiag.diagnose.miss import Miss
from cftdiag.findings import Remedy

CAUSES = (
    Cause(
        key="grad_mode",
        kinds=("recompile", "limit_hit"),
        title="Gradients are on in some calls and off in others",
        what="Whether gradients are enabled (no_grad, inference_mode) is global state and guarded.",
        why="A validation pass, or the forward of a reference model, compiles a second variant.",
        says="The code was compiled with gradients {expected} and is called with them {actual}.",
        fix="Expect one training and one evaluation variant; switch no_grad() and eval() together, and warm both.\n\n"
        "```python\nwith torch.no_grad():\n    model.eval()(**batch)                         # once, before training\nmodel.train()\n```",
        references=(ref.RECOMPILATION, ref.torch_issue(100977), ref.issue("Deci-AI/super-gradients", 1172)),
        remedies=(
            Remedy(summary="Expected with evaluation: warm the no_grad variant up before training and switch eval() and no_grad() together."),
            Remedy(summary="Run evaluation eager: torch.compiler.set_stance('force_eager') around it."),
        ),
        example=example("grad_mode"),
    ),
    Cause(
        key="global_state",
        kinds=("recompile", "limit_hit"),
        title="Global state of torch changed",
        what="Autocast, the default dtype or device, deterministic algorithms, the number of threads or a function mode are guarded for every frame.",
        why="One change compiles every block again.",
        says="torch's global state differs from when the code was compiled: {state}.",
        fix="Set global state once before the first compiled call.\n\n```python\ntorch.set_num_threads(8)\ntorch.use_deterministic_algorithms(True)\nblock.compile()\n```",
        references=(ref.RECOMPILATION,),
        remedies=(Remedy(summary="Set {state} once before the first compiled call, the same for every call of the block."),),
        example=example("global_state"),
    ),
)


def classify(miss: Miss) -> str | None:
    """The cause of a miss by global state, or None."""
    if miss.guard.prop != "state":
        return None
    return "grad_mode" if "grad_mode" in miss.guard.text else "global_state"


def changed(text: str) -> str:
    """``autocast(cpu)_enabled`` of ``GLOBAL_STATE changed: autocast(cpu)_enabled``."""
    found = re.search(r"changed: (.+)$", text)
    return ", ".join(found[1].split()) if found else "a function mode is active"
