"""Values that steer Python are real, or declared."""

import pytest
import torch
import torch._dynamo as dynamo

from cftdiag.fastforward import (
    EVENTS,
    SKIPPED,
    SkipMode,
    fast_forward,
    mark,
    mark_weights,
    reset,
    routing_policy,
    status,
    trace_only,
)

WIDTH = 64


@pytest.fixture(autouse=True)
def _fresh():
    dynamo.reset()
    reset()
    torch.set_num_threads(1)


def reads():
    return {n.op for n in EVENTS if n.what == "read"}


class Items(torch.nn.Module):
    """Splits a packed sequence in Python, by numbers read from cu_seqlens."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(WIDTH, WIDTH)
        self.seen = []

    def forward(self, x, cu):
        x = self.lin(x)
        lengths = cu[1:] - cu[:-1]
        longest = lengths.max().item()
        y = torch.cat([torch.softmax(p, 0) for p in x.split(lengths.tolist())])
        self.seen.append(longest)
        return y + longest


@pytest.mark.parametrize("backend", [fast_forward, trace_only])
def test_item_and_tolist_on_real_values(backend):
    block = mark_weights(Items())
    block.compile(backend=backend, dynamic=True, fullgraph=False)
    with SkipMode():
        for cu in ([0, 10, 25], [0, 7, 25], [0, 3, 40, 61]):
            x = mark(torch.zeros(cu[-1], WIDTH), SKIPPED).requires_grad_()
            y = block(x, torch.tensor(cu))
            assert y.shape == x.shape and status(y) == SKIPPED
            y.sum().backward()
            assert x.grad.shape == x.shape
    assert block.seen == [15, 18, 37]
    assert not EVENTS  # every number that Python read was real


class Branch(torch.nn.Module):
    """Takes one of two paths by whether the positions restart, after a break."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(WIDTH, WIDTH)
        self.taken = []

    def forward(self, x, positions):
        y = self.lin(x)
        if (positions[:, 1:] != positions[:, :-1] + 1).any():
            self.taken.append("packed")
            return torch.softmax(y, 1)
        self.taken.append("plain")
        return y


@pytest.mark.parametrize("backend", [fast_forward, trace_only])
def test_packed_and_plain_take_their_own_branch(backend):
    block = mark_weights(Branch())
    block.compile(backend=backend, dynamic=True)
    plain = torch.arange(20)[None]
    packed = torch.cat([torch.arange(12), torch.arange(8)])[None]
    with SkipMode():
        for positions in (plain, packed, plain):
            block(mark(torch.zeros(1, 20, WIDTH), SKIPPED).requires_grad_(), positions).sum().backward()
    assert block.taken == ["plain", "packed", "plain"]
    assert not EVENTS


@pytest.mark.parametrize("backend", [fast_forward, trace_only])
def test_number_read_from_activations_is_declared(backend):
    block = mark_weights(torch.nn.Linear(WIDTH, WIDTH))

    def fn(x):
        y = block(x)
        if y.abs().max() > 1e4:
            return y * 0
        return y * y.mean().item()

    with SkipMode():
        y = torch.compile(fn, backend=backend, dynamic=True)(torch.zeros(9, WIDTH))
    assert status(y) == SKIPPED and y.shape == (9, WIDTH)
    assert "aten._local_scalar_dense.default" in reads()
    assert {n.line for n in EVENTS if n.what == "read" and n.file == __file__} >= {
        fn.__code__.co_firstlineno + 4
    }


def mixtral(experts, top_k, fullgraph):
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=WIDTH, intermediate_size=96, num_local_experts=experts, num_experts_per_tok=top_k
    )
    config._experts_implementation = "eager"
    with SkipMode():
        block = mark_weights(MixtralSparseMoeBlock(config))
    block.compile(backend=fast_forward, dynamic=True, fullgraph=fullgraph)
    return block


@pytest.mark.parametrize("policy, hit", [("balanced", 8), ("all_to_first", 2), ("idle_and_single", 7)])
def test_mixtral_with_breaks_visits_the_experts_of_the_policy(policy, hit):
    block, rows = mixtral(8, 2, fullgraph=False), []
    block.experts.act_fn.register_forward_hook(lambda m, i, o: rows.append(o.shape[0]))
    for tokens in (40, 52):
        rows.clear()
        x = mark(torch.zeros(1, tokens, WIDTH), SKIPPED).requires_grad_()
        with SkipMode(), routing_policy(policy):
            y = block(x)
            y.sum().backward()
        assert y.shape == x.shape and x.grad.shape == x.shape
        assert len(rows) == hit and sum(rows) == tokens * 2, rows
        assert (1 in rows) == (policy == "idle_and_single")
    assert reads()  # the report says that routing was assumed
    assert all(p.grad is not None for p in block.parameters())


def test_tolist_and_numpy_of_skipped_memory_are_declared():
    before = torch.Tensor.tolist
    skipped = mark(torch.full((3,), 7.0), SKIPPED)
    with SkipMode():
        assert skipped.tolist() == [1.0, 1.0, 1.0]
        assert skipped.numpy().tolist() == [1.0, 1.0, 1.0]
        assert torch.arange(3).tolist() == [0, 1, 2]
        with SkipMode():
            pass
        assert skipped.tolist() == [1.0, 1.0, 1.0]  # nesting does not end it
    assert reads() == {"Tensor.tolist", "Tensor.numpy"}
    assert torch.Tensor.tolist is before and "tolist" not in vars(torch.Tensor)
    assert skipped.tolist() == [7.0, 7.0, 7.0]


def test_dynamo_does_not_see_the_declaring_methods():
    def fn(x, sizes):
        return x * sizes.tolist()[0]

    with SkipMode():
        torch.compile(fn, backend=fast_forward, fullgraph=True, dynamic=True)(
            torch.zeros(3), torch.tensor([2, 3])
        )
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"numpy|data"):
            with dynamo.config.patch(trace_numpy=False):
                torch.compile(lambda x: x.numpy(), backend=fast_forward, fullgraph=True)(torch.zeros(3))
        assert torch.Tensor.tolist.__module__ == "cftdiag.fastforward.host_reads"


def test_skipped_loss_counts_as_finite():
    loss = mark(torch.zeros(()), SKIPPED)
    with SkipMode():
        assert torch.isfinite(loss) and not torch.isnan(loss) and not torch.isinf(loss)


def test_optimizer_step_reads_nothing_and_writes_nothing():
    model = mark_weights(torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters())
    weight = model.weight.detach().clone()
    with SkipMode():
        model(mark(torch.zeros(2, WIDTH), SKIPPED)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert torch.equal(model.weight, weight)
    assert optimizer.state[model.weight]["step"] == 1
