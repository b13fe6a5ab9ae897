"""What a cached graph asks of a call, from torch's own texts."""

from __future__ import annotations

from cftdiag.capture.entry_guards import MOST, told

TENSOR = (
    "check_tensor({}, {}, DispatchKeySet(CPU, BackendSelect, ADInplaceOrView, AutogradCPU), torch.float32, device=None, "
    "requires_grad={}, size=[2, None, 8], stride=[None, 8, 1])"
)
TEXTS = (
    "___check_global_state() against {}",
    "___check_type_id(L['self'], 93952247444992), type=<class '__main__.Block'>",
    "not ___dict_contains('forward', L['self']._modules['linear'].__dict__)",
    TENSOR.format("L['self']._modules['linear']._parameters['weight']", "Parameter", "True"),
    "hasattr(L['x'], '_dynamo_dynamic_indices') == False",
    "___check_obj_id(G['__import_torch_dot_nn'].F, 140127586071424), type=<class 'module'>",
    "not math.isnan(L['self'].eps)",
    "L['self'].calls == 1",
    "L['flag'] == True",
    TENSOR.format("L['x']", "Tensor", "True"),
    TENSOR.format("L['mask']", "AsyncCollectiveTensor", "False"),
    "L['x'].stride()[0] == 8*L['x'].size()[1]",
    "2 <= L['x'].size()[1]",
    "2 <= L['x'].size()[1]",
)


def test_guards_that_a_call_can_fail_are_told_in_order_and_once() -> None:
    assert told(TEXTS) == (
        "self.calls == 1",
        "flag == True",
        "x: float32 [2, any, 8], requires_grad",
        "mask: AsyncCollectiveTensor float32 [2, any, 8]",
        "x.stride()[0] == 8*x.size()[1]",
        "2 <= x.size()[1]",
    )


def test_a_long_list_is_cut_and_says_so() -> None:
    texts = [f"L['self'].n{i} == {i}" for i in range(MOST + 3)]
    shown = told(texts)
    assert (
        len(shown) == MOST + 1
        and shown[-1] == "and 3 more"
        and shown[MOST - 1] == f"self.n{MOST - 1} == {MOST - 1}"
    )
