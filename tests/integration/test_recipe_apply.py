"""Checkpointing, compile scopes and FSDP2 change the program that is traced, in the order checkpointing ->
compile -> FSDP2.
"""

import pytest
import torch
import torch._dynamo as dynamo
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.tensor import DTensor

from cftdiag.fastforward import STATS, Graph, SkipMode, fast_forward, reset
from cftdiag.options import SCOPES
from cftdiag.recipe import TrainRecipe, apply_recipe, build_model, fake_mesh, find_blocks, make_batches

TINY = {
    "model_type": "qwen3", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 90, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
MATMULS_OF_A_BLOCK = 7


@pytest.fixture(autouse=True)
def _fresh():
    dynamo.reset()
    dynamo.utils.counters.clear()
    reset()
    torch.set_num_threads(1)


@pytest.fixture
def no_process_group():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


class Graphs:
    """A torch.compile backend that keeps the forward and backward graphs and runs them."""

    def __init__(self):
        self.fwd, self.bwd = [], []
        self.backend = aot_autograd(fw_compiler=self._keep(self.fwd), bw_compiler=self._keep(self.bwd))

    def _keep(self, graphs):
        def compile_graph(gm, inputs):
            graphs.append([str(n.target) for n in gm.graph.nodes if n.op == "call_function"])
            return make_boxed_func(gm)

        return compile_graph

    def __call__(self, module, name):
        return module.compile(backend=self.backend, fullgraph=True, dynamic=True)

    @staticmethod
    def count(graph, op):
        return sum(op in target for target in graph)


def graphs_of(ac):
    model, graphs = build_model(TINY, weights=True, dtype="float32", layers=1), Graphs()
    program = apply_recipe(model, find_blocks(model), TrainRecipe(ac=ac), compile=graphs)
    (batch,) = make_batches(model.config, lengths=(20,), model=model)
    loss = program.step(batch.kwargs)
    gradients = [p.grad.clone() for p in model.parameters()]
    return graphs, loss, gradients, program


def test_the_recompute_region_is_in_the_joint_graph():
    plain, loss, gradients, _ = graphs_of("none")
    full, loss_full, gradients_full, program = graphs_of("full")
    selective, loss_selective, gradients_selective, _ = graphs_of("selective")
    mm, attention = "aten.mm.", "_scaled_dot_product"
    assert Graphs.count(plain.fwd[0], mm) == MATMULS_OF_A_BLOCK
    assert Graphs.count(plain.bwd[0], mm) == 2 * MATMULS_OF_A_BLOCK
    # the recomputed forward: all products but the last, whose result no gradient needs
    assert Graphs.count(full.bwd[0], mm) == 3 * MATMULS_OF_A_BLOCK - 1
    assert (
        Graphs.count(full.bwd[0], "run_with_rng_state") == 1
    )  # attention, recomputed with the forward's random state
    assert Graphs.count(selective.bwd[0], mm) == 2 * MATMULS_OF_A_BLOCK
    assert (
        Graphs.count(selective.bwd[0], "run_with_rng_state") == 0
        and Graphs.count(selective.bwd[0], attention) == 1
    )
    assert Graphs.count(selective.bwd[0], "rsqrt") > Graphs.count(
        plain.bwd[0], "rsqrt"
    )  # the norms are recomputed
    assert (
        isinstance(program.blocks[0][1], CheckpointWrapper)
        and program.model.model.layers[0] is program.blocks[0][1]
    )
    for other_loss, others in ((loss_full, gradients_full), (loss_selective, gradients_selective)):
        torch.testing.assert_close(other_loss, loss)
        torch.testing.assert_close(others, gradients)


@pytest.mark.parametrize("scope", SCOPES)
def test_every_scope_compiles_what_it_says_and_has_the_same_loss(scope):
    model, names = build_model(TINY, weights=True, dtype="float32"), []
    (batch,) = make_batches(model.config, lengths=(9,), model=model)
    logits = model(**{k: v for k, v in batch.kwargs.items() if k != "labels"}).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.kwargs["labels"].flatten())

    def compile(module, name):
        names.append(name)
        module.compile(backend="eager", fullgraph=True)

    program = apply_recipe(
        model, find_blocks(model), TrainRecipe(scope=scope, loss_chunks=2), compile=compile
    )
    loss = program.step(batch.kwargs)
    blocks = ["model.layers.0", "model.layers.1"]
    assert names == {
        "none": [], "block": blocks, "loss": ["cross_entropy"], "block+loss": [*blocks, "cross_entropy"], "model": ["model"], "model+loss": ["step"]
    }[scope]  # fmt: skip
    assert names == [name for name, _ in program.regions]
    assert (dynamo.utils.counters["stats"]["unique_graphs"] > 0) == (scope != "none")
    torch.testing.assert_close(loss, expected.detach())
    assert all(p.grad is not None for p in model.parameters())
    program.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_a_model_without_a_separate_head_keeps_its_own_loss_and_is_compiled_whole():
    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4)])

        def forward(self, x):
            return self.layers[0](x)

    names = []
    model = Tiny()
    program = apply_recipe(
        model,
        find_blocks(model),
        TrainRecipe(scope="model", loss_chunks=None),
        compile=lambda m, name: names.append(name),
    )
    assert names == ["<root>"] and program.step({"x": torch.ones(2, 4)}).shape == ()
    with pytest.raises(ValueError, match="the loss is inside of Tiny's own forward"):
        apply_recipe(model, find_blocks(model), TrainRecipe(scope="block+loss", loss_chunks=None))
    with pytest.raises(ValueError, match="Tiny has no body and lm_head"):
        apply_recipe(model, find_blocks(model), TrainRecipe())


@pytest.mark.parametrize(
    "ac",
    [pytest.param("none", marks=pytest.mark.everything("10 s; the world with checkpointing stays")), "full"],
)
def test_world_of_eight_is_sharded_and_its_hooks_run(ac, no_process_group, monkeypatch):
    traced = set()
    init = Graph.__init__

    def keep(self, gm, kind):
        traced.update(
            str(tuple(n.meta["val"].shape))
            for n in gm.graph.nodes
            if isinstance(n.meta.get("val"), torch.Tensor)
        )
        init(self, gm, kind)

    monkeypatch.setattr(Graph, "__init__", keep)
    model = build_model(TINY)
    with SkipMode():
        program = apply_recipe(
            model,
            find_blocks(model),
            TrainRecipe(ac=ac),
            compile=lambda m, name: m.compile(backend=fast_forward, fullgraph=True, dynamic=True),
            mesh=fake_mesh(8),
        )
        assert all(isinstance(p, DTensor) and p.device_mesh.size() == 8 for p in model.parameters())
        up = dict(model.named_parameters())[next(n for n, _ in model.named_parameters() if "up_proj" in n)]
        assert up.shape == (80, 48) and up._local_tensor.shape == (10, 48)
        for batch in make_batches(model.config, lengths=(20, 33), model=model):
            loss = program.step(batch.kwargs)
            assert loss.shape == ()
            assert all(isinstance(p.grad, DTensor) and p.grad.shape == p.shape for p in model.parameters())
            program.zero_grad()
    assert STATS["fwd"] == STATS["bwd"] == 1
    assert (
        "(80, 48)" in traced and "(10, 48)" not in traced
    )  # FSDP's hook had gathered the parameters before the block was traced


@pytest.mark.everything(
    "40 s each; a sharded world of blocks stays, and a region over all blocks in one process"
)
@pytest.mark.parametrize("scope", ["model", "model+loss"])
def test_a_region_over_all_blocks_is_one_graph_in_a_sharded_world(scope, no_process_group):
    model = build_model(TINY)
    with SkipMode():
        program = apply_recipe(
            model,
            find_blocks(model),
            TrainRecipe(scope=scope, ac="full"),
            compile=lambda m, name: m.compile(backend=fast_forward, fullgraph=True, dynamic=True),
            mesh=fake_mesh(8),
        )
        for batch in make_batches(model.config, lengths=(20, 33), model=model):
            program.step(batch.kwargs)
            program.zero_grad()
    assert STATS["fwd"] == STATS["bwd"] == 1


def test_another_world_in_the_same_process_is_refused(no_process_group):
    fake_mesh(2)
    with pytest.raises(RuntimeError, match="a fake process group of 2 ranks exists already"):
        fake_mesh(4)


def test_refusals():
    with pytest.raises(ValueError, match="ac 'some' is not one of none, full, selective"):
        TrainRecipe(ac="some")
    with pytest.raises(ValueError, match="compile scope 'layer' is not one of"):
        TrainRecipe(scope="layer")
    model = build_model(TINY, layers=1)
    with pytest.raises(ValueError, match="needs labels"):
        apply_recipe(model, []).step({"input_ids": torch.ones(1, 2, dtype=torch.int64)})
