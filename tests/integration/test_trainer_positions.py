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
