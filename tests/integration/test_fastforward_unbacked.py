"""Data-dependent sizes inside one graph."""

import pytest
import torch
import torch._dynamo as dynamo
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from cftdiag.fastforward import (
    ASSUMED,
    EVENTS,
    SKIPPED,
    STATS,
    SkipMode,
    fast_forward,
    mark,
    mark_weights,
    reset,
    routing_policy,
    status,
)

WIDTH, EXPERTS, TOP_K = 64, 4, 2


class NonzeroMoE(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x):
        weight, index = self.gate(x).softmax(-1).topk(TOP_K)
        out, sizes = torch.zeros_like(x), []
        for e, expert in enumerate(self.experts):
            token, slot = torch.where(index == e)
            out = out.index_add(0, token, expert(x[token]) * weight[token, slot, None])
            sizes.append(token)
        return out, sizes


@pytest.fixture(autouse=True)
def _fresh():
    dynamo.reset()
    reset()
    torch.set_num_threads(1)
    with dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


COUNTS = {
    "balanced": lambda t: [t // 2] * 4,
    "all_to_first": lambda t: [t, t, 0, 0],
    "idle_and_single": lambda t: [t - 1, t, 1, 0],
}


@pytest.mark.parametrize("policy", COUNTS)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_nonzero_routing_in_one_graph(policy, checkpoint):
    block = mark_weights(NonzeroMoE())
    call = checkpoint_wrapper(block, preserve_rng_state=False) if checkpoint else block
    call.compile(backend=fast_forward, dynamic=True, fullgraph=True)
    for tokens in (40, 52, 30):
        x = mark(torch.zeros(tokens, WIDTH), SKIPPED).requires_grad_()
        with SkipMode(), routing_policy(policy):
            y, sizes = call(x)
            y.sum().backward()
        assert y.shape == x.shape and status(y) == SKIPPED and x.grad.shape == x.shape
        assert [s.numel() for s in sizes] == COUNTS[policy](tokens)
        assert all(status(s) == ASSUMED for s in sizes)
    assert STATS["fwd"] == STATS["bwd"] == 1
    assert all(p.grad.shape == p.shape for p in block.parameters())


def test_size_from_real_data_is_exact():
    """A boolean mask of the batch selects rows: the size is the true one, and nothing is assumed."""
    lin = mark_weights(torch.nn.Linear(WIDTH, WIDTH))
    fn = torch.compile(lambda x, keep: lin(x)[keep], backend=fast_forward, dynamic=True, fullgraph=True)
    for n in (11, 23):
        keep = torch.arange(n) % 3 == 0
        with SkipMode():
            y = fn(mark(torch.zeros(n, WIDTH), SKIPPED).requires_grad_(), keep)
            y.sum().backward()
        assert y.shape == (int(keep.sum()), WIDTH)
    assert not EVENTS


def test_split_by_counts():
    """tolist() of expert counts inside one graph: unbacked sizes read as numbers."""
    gate, lin = mark_weights(torch.nn.Linear(WIDTH, EXPERTS)), mark_weights(torch.nn.Linear(WIDTH, WIDTH))

    def fn(x):
        index = gate(x).argmax(-1)
        counts = torch.zeros(EXPERTS, dtype=torch.int64).index_add(0, index, torch.ones_like(index))
        order = index.argsort()
        return torch.cat([lin(p) for p in x[order].split(counts.tolist())]), counts

    fn = torch.compile(fn, backend=fast_forward, dynamic=True, fullgraph=True)
    for n in (12, 21):
        with SkipMode():
            y, counts = fn(mark(torch.zeros(n, WIDTH), SKIPPED).requires_grad_())
            y.sum().backward()
        assert y.shape == (n, WIDTH) and counts.sum() == n and counts.min() >= n // EXPERTS


def test_item_of_real_and_of_skipped_values_in_one_graph():
    lin = mark_weights(torch.nn.Linear(WIDTH, WIDTH))

    def fn(x, lengths):
        longest, loss = lengths.max().item(), lin(x).sum().item()
        torch._check(longest >= 2)
        return lin(x) * loss, x.new_zeros(longest, 3)

    fn = torch.compile(fn, backend=fast_forward, dynamic=True, fullgraph=True)
    for lengths in ([4, 9], [17, 3, 5]):
        with SkipMode():
            y, pad = fn(mark(torch.zeros(6, WIDTH), SKIPPED).requires_grad_(), torch.tensor(lengths))
            y.sum().backward()
        assert pad.shape == (max(lengths), 3) and y.shape == (6, WIDTH)
    assert STATS["fwd"] == 1


def test_made_up_number_respects_the_asserted_range():
    lin = mark_weights(torch.nn.Linear(WIDTH, WIDTH))

    def fn(x):
        n = lin(x).argmax(-1).sum().item()
        torch._check(n >= 16)
        return x.new_zeros(n)

    with SkipMode():
        out = torch.compile(fn, backend=fast_forward, dynamic=True, fullgraph=True)(
            mark(torch.zeros(1, WIDTH), SKIPPED)
        )
    assert out.numel() >= 16 or status(out) != SKIPPED
