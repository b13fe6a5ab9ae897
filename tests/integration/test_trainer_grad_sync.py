"""What ranks exchange while gradients accumulate, counted over a fake world of four ranks."""

from __future__ import annotations

import json

import pytest

from tests.warm import Warm

_COUNT = """
import json, sys, tempfile
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from cftdiag.recipe.fake_world import fake_mesh
from trainer import demo
from trainer.config import TrainConfig
from trainer.optim import make_optimizer
from trainer.program import build
from trainer.step import Stepper

class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.names.append(str(op))
        return op(*args, **(kwargs or {}))

fake_mesh(4)
with tempfile.TemporaryDirectory() as folder:
    demo.config(num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=2,
                num_key_value_heads=1).save_pretrained(folder)
    demo.tokenizer().save_pretrained(folder)
    config = TrainConfig(model_name_or_path=folder, random_init=True, data_path="-", device="cpu",
                         compile_backend="eager", replicas=int(sys.argv[1]), grad_sync=sys.argv[2], output_dir=folder)
    program = build(config)
stepper = Stepper(program, make_optimizer(program.model, config), config)
ids = torch.arange(8)[None]
row = {"input_ids": ids, "position_ids": ids, "labels": ids}
found = []
for microsteps in (1, 3, 1, 3):
    with Seen() as seen:
        stepper.step([dict(row) for _ in range(microsteps)], 8 * microsteps, lr=1e-3)
    found.append([sum(name in op for op in seen.names) for name in ("c10d._reduce_scatter", "c10d.allreduce")])
print("COUNTS" + json.dumps(found))
"""


@pytest.mark.parametrize(
    ("replicas", "sync", "scatters", "all_reduces"),
    [(1, "every", 3, 0), (1, "last", 1, 0), (2, "every", 3, 1), (2, "last", 1, 1)],
)
def test_gradients_travel_no_more_often_than_asked(
    warm: Warm, replicas: int, sync: str, scatters: int, all_reduces: int
) -> None:
    done = warm.run(_COUNT, str(replicas), sync)
    one, three, again, last = json.loads(done.stdout.partition("COUNTS")[2])
    assert (one, three) == (again, last), "a step leaves nothing behind for the next"
    groups = one[0]
    assert groups >= 3, "two blocks and the root"
    assert three[0] == scatters * groups
    # what every step sums up beside its gradients: the loss, the norms
    own = one[1] - (groups if replicas > 1 else 0)
    assert three[1] == all_reduces * groups + own
