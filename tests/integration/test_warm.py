"""Programs in children of the warmed interpreter behave as in one of their own."""

from __future__ import annotations

from pathlib import Path

from tests.warm import Warm


def test_a_snippet_has_arguments_streams_and_a_virgin_dynamo(warm: Warm) -> None:
    code = """
    import os, sys, torch
    from cftdiag.capture import Recorder
    with Recorder() as recorder:
        torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))
    print(sys.argv, os.environ["MINE"], [e.compile_id for e in recorder.events if e.kind == "compile"])
    print("aside", file=sys.stderr)
    """
    for _ in range(2):
        done = warm.run(code, "a", "b", env={"MINE": "1"})
        assert done.stdout == "['-c', 'a', 'b'] 1 ['0/0']\n"
        assert done.stderr == "aside\n"


def test_a_script_is_main_and_finds_its_neighbours(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 7\n")
    (tmp_path / "script.py").write_text("import beside\nprint(__name__, beside.value)\n")
    assert warm.run(tmp_path / "script.py").stdout == "__main__ 7\n"


def test_every_end_is_told(warm: Warm) -> None:
    for code, expected in (
        ("import sys; sys.exit(5)", 5),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("raise ValueError('mine')", 1),
        ("raise SystemExit('bye')", 1),
    ):
        assert warm.run(code, check=False).returncode == expected
    assert "ValueError: mine" in warm.run("raise ValueError('mine')", check=False).stderr
    at_exit = "import atexit; atexit.register(print, 'at exit')"
    assert warm.run(at_exit).stdout == "at exit\n"


def test_a_program_that_never_ends_is_stopped_by_its_processor_time(warm: Warm) -> None:
    assert warm.run("while True: pass", check=False, cpu=1).returncode == -24  # SIGXCPU


def test_ranks_meet_and_one_that_fails_ends_all(warm: Warm) -> None:
    code = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    x = torch.ones(1)
    dist.all_reduce(x)
    print(dist.get_rank(), x.item())
    dist.destroy_process_group()
    """
    assert sorted(warm.run(code, ranks=2).stdout.splitlines()) == ["0 2.0", "1 2.0"]
    lone = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(600)"
    assert warm.run(lone, ranks=2, check=False).returncode == 3
