"""What is checked is what is trained: one configuration built by the trainer and by a pass of the check."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule

import trainer.program
from cftdiag.options import CheckOptions
from cftdiag.passes import run_pass
from cftdiag.passes.messages import PassTask, Raised, Refused, Unfit
from cftdiag.recipe import Program, fake_mesh
from cftdiag.subject import Origin, resolve
from trainer import demo
from trainer.config import TrainConfig
from trainer.data import open_data
from trainer.model import open_source
from trainer.preflight import subject_of
from trainer.program import build

SHAPE: dict[str, Any] = dict(
    num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1
)
MIXTURE = SHAPE | {
    "num_hidden_layers": 3,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 272,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoConfig

    out = tmp_path_factory.mktemp("models")
    demo.config(**SHAPE).save_pretrained(out / "dense")
    demo.config(**SHAPE, attention_dropout=0.1).save_pretrained(out / "dropout")
    AutoConfig.for_model("mixtral", **MIXTURE).save_pretrained(out / "mixture")
    for model in out.iterdir():
        demo.tokenizer().save_pretrained(model)
    demo.write_data(out / "data.jsonl", count=12)
    return out


@pytest.fixture
def alone() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    if dist.is_initialized():
        dist.destroy_process_group()


@dataclasses.dataclass
class Seen:
    """What one path made."""

    program: Program | None = None
    compiled: list[tuple[str, str, Any]] = dataclasses.field(default_factory=list)
    """(name, module class, dynamic) in order, with the state of the module at that time."""
    graphs: dict[str, list[list[str]]] = dataclasses.field(default_factory=dict)
    """Operators of each graph by class of the region."""


@contextlib.contextmanager
def watched(module: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """Keep the program that ``module`` makes of the recipe, what is compiled and into which graphs."""
    seen = Seen()
    apply, compile_module = module.apply_recipe, torch.nn.Module.compile

    def applying(model: Any, blocks: Any, recipe: Any, *, compile: Any, mesh: Any) -> Program:
        def naming(region: Any, name: str) -> None:
            seen.compiled.append((name, _state(region), None))
            compile(region, name)

        seen.program = apply(model, blocks, recipe, compile=naming, mesh=mesh)
        return seen.program

    def compiling(region: Any, *args: Any, **kwargs: Any) -> None:
        def backend(graph: Any, inputs: Any) -> Any:
            operators = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
            seen.graphs.setdefault(type(region).__name__, []).append(operators)
            return graph.forward

        assert kwargs["fullgraph"]
        seen.compiled[-1] = (*seen.compiled[-1][:2], kwargs["dynamic"])
        compile_module(region, backend=backend, fullgraph=True, dynamic=kwargs["dynamic"])

    with monkeypatch.context() as patch:
        patch.setattr(module, "apply_recipe", applying)
        patch.setattr(torch.nn.Module, "compile", compiling)
        yield seen


def _state(module: Any) -> str:
    """What has been put on a module so far: the order of the recipe shows in it."""
    inner = getattr(module, "_checkpoint_wrapped_module", module)
    marks = ["checkpointed"] * isinstance(module, CheckpointWrapper)
    marks += ["sharded"] * any(isinstance(m, FSDPModule) for m in module.modules())
    return " ".join([type(inner).__name__, *marks])


def _sharding(module: Any) -> tuple[Any, ...] | None:
    if not isinstance(module, FSDPModule):
        return None
    state = module._get_fsdp_state()
    group = state._fsdp_param_group
    comms = (group.gradient_divide_factor, group.force_sum_reduction_for_comms) if group else None
    return (
        state._mp_policy,
        tuple(group.mesh_info.mesh.shape) if group else None,
        group.post_forward_mesh_info is None if group else None,
        sorted(p._param_fqn or "" for p in group.fsdp_params) if group else None,
        comms,
    )


def _checkpointing(module: Any) -> tuple[Any, ...] | None:
    if not isinstance(module, CheckpointWrapper):
        return None
    kwargs = module.checkpoint_fn.keywords
    context = kwargs.get("context_fn")
    return kwargs["preserve_rng_state"], None if context is None else context.args


def _described(seen: Seen) -> dict[str, Any]:
    assert seen.program is not None
    modules = {
        name.replace("_checkpoint_wrapped_module.", "").replace("_checkpoint_wrapped_module", ""): module
        for name, module in seen.program.model.named_modules()
    }
    return {
        "blocks": [name for name, _ in seen.program.blocks],
        "regions": [name for name, _ in seen.program.regions],
        "compiled": seen.compiled,
        "graphs": seen.graphs,
        "checkpointing": {name: _checkpointing(block) for name, block in seen.program.blocks},
        "sharding": {name: found for name, module in modules.items() if (found := _sharding(module))},
        "parameters": {name: (tuple(p.shape), p.dtype) for name, p in seen.program.model.named_parameters()},
    }


CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "osft, selective": ("dense", 1, {"compile_scope": "block+loss", "ac": "selective", "osft": True}),
    "mixed precision, replicas, dropout": (
        "dropout",
        4,
        {"compile_scope": "block", "ac": "full", "dtype": "bfloat16", "replicas": 2},
    ),
    "whole model": ("dense", 4, {"compile_scope": "model+loss", "ac": "full", "dtype": "bfloat16"}),
}


_WHOLE = pytest.mark.everything("15 s; blocks on one rank and on replicas stay")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=_WHOLE if case == "whole model" else ()) for case in CASES]
)
def test_the_check_of_a_configuration_builds_what_the_trainer_builds(
    case: str, alone: None, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, world, values = CASES[case]
    config = TrainConfig(
        model_name_or_path=str(models / name), random_init=True, data_path=str(models / "data.jsonl"), device="cpu",
        max_tokens_per_gpu=256, batch_size=4, max_steps=1, output_dir=str(tmp_path), compile_backend="eager", **values,
    )  # fmt: skip
    source = open_source(config)
    data = open_data(config, source.tokenizer, vocabulary=source.config.vocab_size, world=world)
    subject = subject_of(config, source, data)
    subject.batches = subject.batches[:1]
    fake_mesh(world)

    with watched(trainer.program, monkeypatch) as trained:
        program = build(config, weights=False)
        program.model(**subject.batches[0]).backward()
        of_training = _described(trained)
    torch._dynamo.reset()

    options = CheckOptions(
        model="live", ac=config.ac, compile_scope=config.scope, world_size=world, compile_backend="eager"
    )
    task = PassTask(mode="fullgraph", origin=Origin(type="live", name="m"), options=options)
    messages: list[Any] = []
    with watched(run_pass, monkeypatch) as checked:
        run_pass.run_task(task, messages.append, live=subject)
        assert not [m for m in messages if isinstance(m, Raised | Refused | Unfit)], messages
        of_checking = _described(checked)
    for what, expected in of_training.items():
        assert of_checking[what] == expected, what
    assert of_training["blocks"] == [f"model.layers.{i}" for i in range(2)]
    assert of_training["sharding"][""], "one rank is sharded too"
    assert of_training["graphs"], "something was compiled"


@pytest.mark.everything("18 s; configurations stay")
def test_a_model_by_name_is_wrapped_as_the_trainer_wraps_it(
    alone: None, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(
        model_name_or_path=str(models / "mixture"), random_init=True, device="cpu", output_dir=str(tmp_path), compile_backend="eager",
        train_dtype="bfloat16", compile_scope="block+loss", ac="selective",
    )  # fmt: skip
    fake_mesh(4)
    with watched(trainer.program, monkeypatch) as trained:
        program = build(config, weights=False)
        ids = torch.ones(1, 24, dtype=torch.long)
        program.model(input_ids=ids, labels=ids, position_ids=torch.arange(24)[None]).backward()
        of_training = _described(trained)
    torch._dynamo.reset()
    model = str(models / "mixture")
    options = CheckOptions(
        model=model,
        ac=config.ac,
        compile_scope=config.scope,
        world_size=4,
        lengths=(24,),
        compile_backend="eager",
    )
    task = PassTask(mode="fullgraph", origin=resolve(model), options=options)
    messages: list[Any] = []
    with watched(run_pass, monkeypatch) as checked:
        run_pass.run_task(task, messages.append)
        assert not [m for m in messages if isinstance(m, Raised | Refused | Unfit)], messages
        of_checking = _described(checked)
    assert of_training["blocks"] == [f"model.layers.{i}" for i in range(3)], "not the four experts of a block"
    for what, expected in of_training.items():
        assert of_checking[what] == expected, what
