"""Training scripts, unmodified: what ``cftdiag check -- COMMAND`` says of them against what ``cftdiag run`` sees when
they really run.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cftdiag.monitor import report

_ROOT = Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / "tests" / "integration" / "scripts"
#: What depends on this machine's clock, or on nothing that a rehearsal is asked for.
_LEFT_OUT = frozenset({"compile_time_depth", "cache_miss", "cudagraph_skip", "graph_runs_eager"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Script:
    """One script of ``tests/integration/scripts`` and how it is held against reality."""

    path: str
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    """More than 1: torchrun on gloo for real, that many fake ranks in the rehearsal, all of them compared."""
    accelerate: str | None = None
    """Configuration for ``accelerate launch``, which starts the ranks then."""
    target: str | None = None
    """``cpu``: Inductor and g++ for real, and lowered for in the rehearsal; else graphs run by ``aot_eager``."""
    needs: tuple[str, ...] = ()
    """Packages, without which the script cannot run."""

    @property
    def missing(self) -> str | None:
        """A package that is not installed here."""
        return next((name for name in self.needs if find_spec(name) is None), None)

    @property
    def command(self) -> list[str]:
        """The command, as a person would type it."""
        launcher = (
            ["-m", "torch.distributed.run", "--nproc-per-node", str(self.ranks)] if self.ranks > 1 else []
        )
        if self.accelerate is not None:
            launcher = ["-m", "accelerate.commands.launch", "--config_file", str(_FOLDER / self.accelerate)]
        program = (
            ["-m", self.path.removeprefix("-m ")]
            if self.path.startswith("-m ")
            else [str(_FOLDER / self.path)]
        )
        return [sys.executable, *launcher, *program, *self.arguments]


_TRAINER = (
    *"--demo --max-steps 3 --compile-model --max-tokens-per-gpu 512".split(),
    *"--output-dir out --device cpu".split(),
)
_TRL = ("transformers", "datasets", "trl")
SCRIPTS: Mapping[str, Script] = {
    "gpt_loop": Script(path="gpt_loop.py"),
    "gpt_loop_cpu": Script(path="gpt_loop.py", target="cpu"),
    "broken_blocks": Script(path="broken_blocks.py"),
    "ddp": Script(path="ddp.py", ranks=2),
    "fsdp2": Script(path="fsdp2.py", ranks=2),
    "hf_trainer": Script(path="hf_trainer.py", needs=_TRL[:2]),
    "hf_trainer_checkpointing": Script(path="hf_trainer.py", arguments=("--checkpointing",), needs=_TRL[:2]),
    "hf_trainer_ddp": Script(path="hf_trainer.py", ranks=2, needs=_TRL[:2]),
    "hf_callbacks": Script(path="hf_callbacks.py", needs=_TRL[:2]),
    "trl_sft": Script(path="trl_sft.py", needs=_TRL),
    "trl_sft_ddp": Script(path="trl_sft.py", ranks=2, needs=_TRL),
    "trl_dpo": Script(path="trl_dpo.py", needs=(*_TRL, "peft")),
    "trl_grpo": Script(path="trl_grpo.py", needs=_TRL),
    "accelerate_lora": Script(path="accelerate_lora.py", arguments=("--cpu",), needs=("accelerate", "peft")),
    "accelerate_lora_ddp": Script(
        path="accelerate_lora.py", arguments=("--cpu",), ranks=2, needs=("accelerate", "peft")
    ),
    "accelerate_fsdp2": Script(
        path="accelerate_fsdp2.py", arguments=("--cpu",), ranks=2, accelerate="accelerate_fsdp2.yaml", needs=("accelerate",)
    ),
    "trainer": Script(path="-m trainer", arguments=_TRAINER),
    "lightning_trainer": Script(path="lightning_trainer.py", needs=("lightning",)),
    "lightning_fabric": Script(path="lightning_fabric.py", needs=("lightning",)),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Told:
    """What both sides must say alike."""

    verdict: str
    compiles: list[str]
    """``rank 0 step 4 model.layers.0``, forward graphs."""
    findings: list[str]
    """Kind, cause, line, count and steps."""

    def summary(self) -> str:
        """``4 compiles, 2 findings, viable_with_recompiles``."""
        return f"{len(self.compiles)} compiles, {len(self.findings)} findings, {self.verdict}"


def rehearsed(script: Script, folder: Path) -> Told:
    """What the check says; ``folder`` is the working directory, in which nothing may be left."""
    path = folder.with_name(folder.name + ".json")
    words = ["--rank", ",".join(map(str, range(script.ranks)))] if script.ranks > 1 else []
    if script.target is not None:
        words += ["--target", script.target]
    _cftdiag(folder, ["check", "--no-verify", *words, "--json", str(path), "--", *script.command], {})
    data = json.loads(path.read_text())
    assert not os.listdir(folder), f"left behind: {os.listdir(folder)}"
    assert data["script"]["ended"] == "ran to its end", data["script"]["ended"]
    return _told(data)


def real(script: Script, folder: Path) -> Told:
    """What the monitor sees of the same command."""
    run = folder.with_name(folder.name + ".run")
    backend = "aot_eager" if script.target is None else "inductor"
    _cftdiag(
        folder,
        ["run", "--run-dir", str(run), "--", *script.command],
        {"BACKEND": backend, "TORCH_COMPILE_BACKEND": backend},
    )
    return _told(report(run))


def differences(real: Told, rehearsed: Told) -> list[str]:
    """Empty when both say the same."""
    found = []
    if real.verdict != rehearsed.verdict:
        found.append(f"verdict: real {real.verdict}, rehearsed {rehearsed.verdict}")
    for a, b in ((real.compiles, rehearsed.compiles), (real.findings, rehearsed.findings)):
        lines = difflib.unified_diff(a, b, "real", "rehearsed", n=0, lineterm="")
        found += [line for line in list(lines)[2:] if not line.startswith("@@")]
    return found


def compare(name: str) -> tuple[Told, list[str]]:
    """(what really happened, what differs)."""
    with tempfile.TemporaryDirectory(prefix="cftdiag-truth-") as scratch:
        folders = [Path(scratch, side) for side in ("rehearsed", "real")]
        for folder in folders:
            folder.mkdir()
        expected = rehearsed(SCRIPTS[name], folders[0])
        happened = real(SCRIPTS[name], folders[1])
    return happened, differences(happened, expected)


def _cftdiag(folder: Path, words: list[str], env: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cftdiag", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=3000,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(words[:2])} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _told(data: Mapping[str, Any]) -> Told:
    forward = [c for c in data["compiles"] if c.get("region") != "backward" and c.get("graphs", 1)]
    return Told(
        verdict=data["verdict"],
        compiles=sorted(
            f"rank {c.get('rank') or 0} step {c['step']} {c['block'] or _qualname(c)}" for c in forward
        ),
        findings=sorted(
            f"{f['kind']} {f['cause']} at {os.path.basename(f['where']['file'] or '')}:{f['where']['line']}, "
            f"{f['count']} times, steps {f['steps']}"
            for f in data["findings"]
            if f["severity"] != "info" and f["cause"] not in _LEFT_OUT
        ),
    )


def _qualname(compiled: Mapping[str, Any]) -> Any:
    return (compiled.get("code") or {}).get("qualname")
