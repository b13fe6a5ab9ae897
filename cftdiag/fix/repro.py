"""A finding as one small file of plain torch, for a bug report: it ends with exit code 1 while the fault is there.

The text is made from a saved check and the source that was checked; nothing is run here. Torch-free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cftdiag.escape import escaped

#: Causes that only code for a device has, or several ranks: plain torch on a CPU does not show them.
_ELSEWHERE = frozenset(
    {
        "inductor_fusion_threshold", "inductor_size_regime", "shape_divisibility", "rank_divergent_recompile",
        "known_wrong_code", "cache_miss", "cudagraph_skip", "compile_time_depth",
    }
)  # fmt: skip
_KINDS = ("graph_break", "recompile", "limit_hit", "error")

_HEAD = '''"""{kind} {cause}, found on torch {torch} with transformers {transformers}.

{facts}
Run it with torch and what the program imports: exit code 1 while the fault is there, 0 without it.
"""

import sys

import torch

'''

_CONFIG = """from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.for_model({model_type!r}, **{config!r})
model = AutoModelForCausalLM.from_config(config, attn_implementation={attn!r}, dtype=torch.{dtype})
batches = []
for length in {lengths!r}:
    ids = torch.randint(config.vocab_size, ({batch_size!r}, length))
    batches.append(dict(input_ids=ids, labels=ids))
step = wrap = before_step = None
"""

_SUBJECT = """built = {builder}()
if isinstance(built, (tuple, list)):
    (model, batches), step, wrap, before_step = built, None, None, None
else:
    model, batches = built.model, built.batches
    step, wrap, before_step = (getattr(built, n, None) for n in ("step", "wrap", "before_step"))
"""

#: Stands in for the one name of ours that a checked file uses.
_STAND_IN = """import types

cftdiag = types.ModuleType("cftdiag")
cftdiag.Subject = lambda **fields: types.SimpleNamespace(**{"batches": (), **fields})
sys.modules["cftdiag"] = cftdiag

"""

_RUN = """
if wrap is not None:
    model = wrap(model) or model
else:
    for name in {blocks!r}:
        model.get_submodule(name).compile(backend="aot_eager", **{kwargs!r})


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def train(model, batch):
    if step is not None:
        return step(model, batch)
    out = next(t for t in tensors(model(**batch)) if t.is_floating_point())
    if out.requires_grad:
        out.float().pow(2).mean().backward()


{watch}
for i, batch in enumerate(batches):
    if before_step is not None:
        before_step(model, i)
    try:
        train(model, batch)
    except Exception as error:
        print(f"step {{i + 1}}: {{type(error).__name__}}: {{error}}")
{on_error}{judge}"""

_WATCH = {
    "limit_hit": "torch._dynamo.config.fail_on_recompile_limit_hit = True",
}
#: Another recompile than the one that this file is about is let happen.
_ON_RECOMPILE = """        seen.append(str(error))
        if GUARD in re.sub(r"\\d+", "#", str(error)):
            sys.exit(1)
        with torch._dynamo.config.patch(error_on_recompile=False):
            train(model, batch)
"""
_GUARD = """
import re

GUARD = {guard!r}
seen = []
torch._dynamo.config.error_on_recompile = True  # the guard that fails is in the error's text
"""
_JUDGE = """broken = torch._dynamo.utils.counters["graph_break"]
for reason, count in broken.items():
    print(f"{count} x graph break: {reason}")
sys.exit(1 if broken else 0)
"""


def repros(
    data: Mapping[str, Any],
    source: str | None,
    config: Mapping[str, Any] | None = None,
    builder: str = "build",
) -> dict[str, str]:
    """File name -> text for each finding at warning or above that plain torch on a CPU shows.

    ``source`` is the checked file with its ``builder``; ``config`` the ``model_type`` and values of a model that the
    check built itself. One of them is given.
    """
    found: dict[str, str] = {}
    for finding in data["findings"]:
        cause, kind = str(finding.get("cause")), str(finding.get("kind"))
        if finding.get("severity") == "info" or kind not in _KINDS or cause in _ELSEWHERE:
            continue
        name = f"repro_{len(found) + 1}_{re.sub(r'[^a-z0-9]+', '_', cause)}.py"
        found[name] = (
            _head(data, finding)
            + _program(data, source, config, builder)
            + _run(data, kind, finding.get("guard"))
        )
    return found


def _head(data: Mapping[str, Any], finding: Mapping[str, Any]) -> str:
    place = finding.get("where") or {}
    facts = {
        "where": f"{Path(str(place['file'])).name}:{place.get('line')}: {place.get('code') or ''}"
        if place.get("file")
        else None,
        "guard": finding.get("guard"),
        "why": finding.get("explanation"),
    }
    lines = [f"{key}: {' '.join(str(text).split())}" for key, text in facts.items() if text]
    environment = data["environment"]
    return _HEAD.format(
        kind=finding.get("kind"),
        cause=finding.get("cause"),
        torch=environment.get("torch"),
        transformers=environment.get("transformers"),
        facts="".join(_in_docstring(line) + "\n" for line in lines),
    )


def _in_docstring(text: str) -> str:
    return escaped(text).replace("\\", "\\\\").replace('"', '\\"')


def _program(
    data: Mapping[str, Any], source: str | None, config: Mapping[str, Any] | None, builder: str
) -> str:
    subject = data["subject"]
    if source is not None:
        body = re.sub(r"^from __future__ .*\n", "", source, flags=re.M)
        stand_in = _STAND_IN if re.search(r"\bcftdiag\b", body) else ""
        return f"{stand_in}{body.rstrip()}\n\n\n{_SUBJECT.format(builder=builder)}"
    assert config is not None
    # two layers show what differs between layers; a vocabulary costs memory and decides nothing
    small = {**config, "num_hidden_layers": 2, "vocab_size": 512, "use_cache": False}
    small = {
        k: v
        for k, v in small.items()
        if k not in ("model_type", "layer_types") and not k.endswith("_token_id")
    }
    return _CONFIG.format(
        model_type=subject["model_type"],
        config=small,
        attn=subject["attn"],
        dtype=subject["dtype"],
        lengths=list(subject["lengths"]),
        batch_size=subject["batch_size"],
    )


def _run(data: Mapping[str, Any], kind: str, guard: Any) -> str:
    subject = data["subject"]
    blocks = [str(block["fqn"]) for block in data["blocks"]]
    if subject.get("type") in ("config", "hub"):
        blocks = blocks[:2]
    on_error, judge, watch = "        sys.exit(1)\n", "", _WATCH.get(kind, "")
    if kind == "recompile":
        watch = _GUARD.format(guard=re.sub(r"\d+", "#", " ".join(str(guard or "").split()))).strip("\n")
        on_error, judge = _ON_RECOMPILE, "sys.exit(1 if seen else 0)\n"
    elif kind == "graph_break":
        judge = _JUDGE
    return _RUN.format(
        blocks=blocks,
        kwargs=dict(subject.get("compile_kwargs") or {}),
        watch=watch,
        on_error=on_error,
        judge=judge,
    )
