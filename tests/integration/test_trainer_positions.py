"""A rank that does not come to a collective is named by the one that waits for it."""

from __future__ import annotations

from pathlib import Path

from tests.warm import Warm


def test_a_collective_that_one_rank_does_not_come_to(tmp_path: Path, warm: Warm) -> None:
    code = """
        import sys, time
        from pathlib import Path
        import torch
        import torch.distributed as dist
        from trainer.distributed import process_group
        from trainer.positions import Positions

        with process_group("cpu", timeout=3) as ranks, Positions(Path(sys.argv[1]), rank=ranks.rank, world=2) as here:
            dist.barrier()
            here.at(4 - ranks.rank, "reading its rows" if ranks.rank else "forward")
            if ranks.rank == 0:
                try:
                    with here.named():
                        dist.all_reduce(torch.zeros(1))
                except ValueError as error:
                    Path(sys.argv[1], "message").write_text(str(error))
                    raise SystemExit(0)
                raise SystemExit("it came")
            while not Path(sys.argv[1], "message").exists():
                time.sleep(0.05)
    """
    warm.run(code, str(tmp_path), ranks=2, check=False)
    message = (tmp_path / "message").read_text()
    assert message.startswith(
        "rank 0, step 4: another rank did not come in time: rank 1 has been in step 3, reading its rows"
    )
    assert "--collective-timeout" in message and "\n" not in message


def test_a_rank_that_does_not_come_before_the_first_step(tiny: Path, tmp_path: Path, warm: Warm) -> None:
    code = """
        import os, sys, time
        from pathlib import Path
        import trainer.loop as loop
        from trainer.cli import run

        out = Path(sys.argv[-1])
        real = loop.open_data

        def slow(*args, **kwargs):
            while os.environ["RANK"] == "1" and not (out / "over").exists():
                time.sleep(0.05)
            return real(*args, **kwargs)

        loop.open_data = slow
        code = run(sys.argv[1:])
        (out / "over").touch()
        sys.exit(code)
    """
    done = warm.run(
        code,
        *("--model-name-or-path", str(tiny), "--random-init", "--data-path", str(tiny / "data.jsonl"), "--device", "cpu"),
        *("--collective-timeout", "4", "--max-steps", "1", "--output-dir", str(tmp_path)),
        ranks=2,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: rank 0"))
    assert line.startswith(
        "error: rank 0, before its first step: another rank did not come in time: rank 1 has been before its first step, "
        "reading the data, for "
    )
