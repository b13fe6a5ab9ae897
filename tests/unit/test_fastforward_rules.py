"""The rule of every operator, eagerly: what is computed, what is only allocated, what is made up."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from cftdiag.fastforward import (
    ASSUMED,
    EVENTS,
    REAL,
    ROUTING_POLICIES,
    SKIPPED,
    Graph,
    SkipMode,
    backend_for,
    mark,
    mark_weights,
    reset,
    routing_policy,
    status,
    undetermined,
)


@pytest.fixture(autouse=True)
def _fresh():
    reset()


def skipped(*shape):
    return mark(torch.zeros(shape), SKIPPED)


def test_real_values_stay_real_and_views_share_their_level():
    with SkipMode():
        positions = torch.arange(6).view(2, 3)
        assert status((positions[:, 1:] - positions[:, :-1]) == 1) == REAL
        x = skipped(4, 4)
        assert status(x.t()[1:]) == SKIPPED and status(x @ x) == SKIPPED and (x @ x).shape == (4, 4)
        assert status(x.argmax(-1)) == ASSUMED and status(x.argmax(-1) + 1) == ASSUMED
        assert status(torch.zeros_like(x)) == REAL
    assert not [n for n in EVENTS if n.what == "read"]


def test_writes_leave_memory_alone_and_raise_its_level():
    real = torch.ones(3)
    with SkipMode():
        real.add_(skipped(3))
        counts = torch.zeros(5, dtype=torch.int64)
        counts.index_add_(0, torch.tensor([0]), skipped(1, 5).argmax(-1))
    assert real.tolist() == [1.0, 1.0, 1.0] and status(real) == SKIPPED
    assert status(counts) == ASSUMED


def test_large_initialisation_is_not_written_and_small_is():
    with SkipMode():
        large, small = torch.nn.Linear(600, 600, bias=False), torch.nn.Linear(4, 4)
        assert status(torch.randn(1 << 17)) == SKIPPED and status(torch.randn(16)) == REAL
        assert status(torch.full((1 << 17,), 3)) == REAL  # integers can steer
    assert status(large.weight) == SKIPPED and status(small.weight) == REAL and small.weight.abs().sum() > 0
    assert all(status(p) == SKIPPED for p in mark_weights(small).parameters())


def test_filled_integers_are_real_whatever_they_are_shaped_like():
    with SkipMode():
        ones = torch.ones_like(skipped(400, 400), dtype=torch.int64)
        assert status(ones) == REAL and ones.sum() == 160000
        assert status(skipped(400, 400).new_zeros(3)) == REAL


@pytest.mark.parametrize(
    "policy, sizes",
    [("balanced", [4, 4, 4, 4]), ("idle_and_single", [7, 8, 1, 0]), ("all_to_first", [8, 8, 0, 0])],
)
def test_routing_policies(policy, sizes):
    assert policy in ROUTING_POLICIES
    with SkipMode(), routing_policy(policy):
        index = skipped(8, 4).topk(2, -1).indices
        assert index.flatten().bincount(minlength=4).tolist() == sizes
        assert all(len(set(row)) == 2 for row in index.tolist())
        assert torch.equal(index, skipped(8, 4).topk(2, -1).indices)  # a recomputation agrees


def test_unknown_names_are_refused():
    with (
        pytest.raises(ValueError, match="unknown routing policy 'random'; one of balanced"),
        routing_policy("random"),
    ):
        pass
    with pytest.raises(ValueError, match="depth 'codegen'; one of trace, joint"):
        backend_for("codegen")


def test_notes_name_the_line_and_reset_forgets_them():
    with SkipMode():
        value = skipped(3).sum().item()  # this line
    (found,) = undetermined()
    assert (
        value == 1.0
        and found["what"] == "read"
        and found["op"] == "aten._local_scalar_dense.default"
        and found["count"] == 1
    )
    assert found["where"]["file"] == __file__ and found["where"]["code"].endswith("# this line")
    reset()
    assert undetermined() == []


def test_matrices_of_two_dtypes_are_refused_as_their_kernels_refuse_them():
    x, weight, bias = skipped(2, 4).bfloat16(), skipped(5, 4), skipped(5)
    with SkipMode():
        for product in (
            lambda: x @ weight.t(),
            lambda: torch.nn.functional.linear(x, weight, bias),
            lambda: torch.mv(x, weight[0]),
        ):
            with pytest.raises(RuntimeError, match=r"same dtype, but got torch\.bfloat16 and torch\.float32"):
                product()
        assert torch.nn.functional.linear(x.float(), weight, bias).shape == (2, 5)


def test_a_flag_that_travels_with_a_skipped_loss_is_still_that_flag():
    with SkipMode():
        shared = torch.stack([skipped(), torch.zeros(()), torch.full((), 3.0)])
        assert status(shared) == ASSUMED
        loss, stop, count = shared.tolist()
        assert (stop, count) == (0.0, 3.0) and loss > 0
        assert status(torch.stack([skipped(), skipped()])) == SKIPPED
        assert status(torch.cat([skipped(512, 512), torch.zeros(1, 512)])) == SKIPPED


def test_parts_of_one_product_are_in_one_memory():
    """q, k and v of a fused projection, kept for backward: three views of what the product returned."""

    def project(x, weight):
        return [part.transpose(1, 2) for part in (x @ weight).view(2, 8, 12).chunk(3, -1)]

    given = torch.empty(16, 4), torch.empty(4, 12)
    graph = Graph(make_fx(project, tracing_mode="fake")(*given), "fwd")
    outputs = graph.run([mark(tensor, SKIPPED) for tensor in given])
    assert [out.shape for out in outputs] == [(2, 4, 8)] * 3
    [storage] = {out.untyped_storage()._cdata: out.untyped_storage() for out in outputs}.values()
    assert storage.nbytes() == 16 * 12 * 4 and outputs[2].storage_offset() == 8
