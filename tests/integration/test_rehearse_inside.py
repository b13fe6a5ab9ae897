"""What a script meets that asks for devices and ranks that are not here."""

from __future__ import annotations

from pathlib import Path

from tests.warm import Warm


def test_dynamo_sees_no_mode_and_names_of_devices_that_are_here(warm: Warm) -> None:
    program = """
    import torch
    from cftdiag.rehearse import cuda_alias
    from cftdiag.rehearse.settings import Rehearsal

    alias = cuda_alias.install(Rehearsal(run_dir="", scratch="", device="h200", rank=5, local_world_size=4))
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    @torch.compiler.disable
    def between(x):
        return torch.arange(3, device="cuda") + x.new_ones(3, device=x.device)

    def step(x):
        if not x.is_cuda or x.device.index != 1:
            between(x)
        y = x.cuda() + torch.ones(3, device="cuda") + torch.ones(3, device=x.device).to("cuda:0")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert torch.is_autocast_enabled("cuda")
            return y @ y

    x = torch.ones(3).cuda()
    compiled = torch.compile(step, backend=backend)
    compiled(x)
    assert len(graphs) == 1, graphs
    text = graphs[0].print_readable(print_output=False)
    assert "cuda" not in text.replace("_enter_autocast('cuda'", ""), text

    broken = torch.compile(lambda x: between(x + 1) * 2, backend=backend)
    assert broken(x).tolist() == [2.0, 4.0, 6.0]
    with Mode():
        # a mode of the script's own is traced and guarded as ever
        assert broken(x).tolist() == [2.0, 4.0, 6.0]
    """
    warm.run(program)


def test_default_device_is_answered_for_inside_too(warm: Warm) -> None:
    program = """
    import torch
    from cftdiag.rehearse import cuda_alias
    from cftdiag.rehearse.settings import Rehearsal

    cuda_alias.install(Rehearsal(run_dir="", scratch="", device="h200"))
    torch.set_default_device("cuda")
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True)
    def step(x):
        positions = torch.arange(x.shape[0])
        assert positions.is_cuda
        return x + positions

    x = torch.ones(3)
    assert x.is_cuda
    for _ in range(2):
        assert step(x).tolist() == [1.0, 2.0, 3.0]
    assert len(graphs) == 1
    """
    warm.run(program)


def test_sharded_checkpoint_of_one_rank_of_several_is_written(warm: Warm, tmp_path: Path) -> None:
    program = """
    import sys
    import torch
    from cftdiag.rehearse import ranks
    from cftdiag.rehearse.settings import Rehearsal

    ranks.install(Rehearsal(run_dir="", scratch="", world_size=2))
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", rank=0, world_size=2)
    model = torch.nn.Linear(4, 4)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
    checkpoint.save(model.state_dict(), checkpoint_id=sys.argv[1])
    """
    warm.run(program, str(tmp_path))
    assert (tmp_path / ".metadata").exists()
