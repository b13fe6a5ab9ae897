"""Seconds of a check at depth codegen, and whose they are: ``python -m tests.bench.target_speed [--target
h200] [--model Qwen3-4B] [--layers all]``.

One process, no child: the training step of the model at four lengths, batch 2, every block lowered for the
target. torch's own clocks say how much of the time Dynamo, AOTAutograd and Inductor took; the rest is
building the model, the eager parts around the blocks and the fast-forward.
"""

from __future__ import annotations

import argparse
import resource
import time


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="Qwen3-4B")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--layers", default="all", help="all or a number")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument(
        "--lengths", type=lambda text: tuple(map(int, text.split(","))), default=(512, 640, 777, 1024)
    )
    parser.add_argument(
        "--inductor", action="append", default=[], help="NAME=True or NAME=False of torch._inductor.config"
    )
    a = parser.parse_args()
    started = time.monotonic()
    import torch
    from torch._dynamo.utils import compilation_time_metrics as clocks

    torch.set_num_threads(1)
    from cftdiag import catalogue, target
    from cftdiag.fastforward import STATS, SkipMode
    from cftdiag.recipe import apply_recipe, build_model, find_blocks, load_config, make_batches

    settings = {name: value == "True" for name, value in (text.split("=") for text in a.inductor)}
    entry = catalogue.find(a.model)
    assert entry is not None, a.model
    model = build_model(
        load_config({"model_type": entry.model_type, **entry.config}),
        layers=None if a.layers == "all" else int(a.layers),
    )
    backend = target.backend(a.target, inductor_config=settings)
    print(f"imports and model {time.monotonic() - started:.1f} s", flush=True)
    with SkipMode():
        program = apply_recipe(
            model,
            find_blocks(model),
            compile=lambda m, name: m.compile(backend=backend, dynamic=True, fullgraph=True),
        )
        for batch in make_batches(model.config, lengths=a.lengths, batch_size=a.batch_size, model=model):
            at = time.monotonic()
            program.step(batch.kwargs)
            program.zero_grad()
            print(
                f"length {batch.length}: {time.monotonic() - at:.1f} s, {STATS['fwd']} compiles so far",
                flush=True,
            )
    total, cpu = time.monotonic() - started, time.process_time()

    def seconds(clock: str) -> float:
        return sum(clocks.get(clock, []))

    compiling, backends, inductor = map(
        seconds, ("_compile.compile_inner", "OutputGraph.call_user_compiler", "fx_codegen_and_compile")
    )
    print(
        f"total {total:.1f} s ({cpu:.1f} s of processor time), {compiling:.1f} s ({compiling / total:.0%}) of it torch compiling:"
    )
    print(
        f"  Dynamo {compiling - backends:.1f} s, AOTAutograd {backends - inductor:.1f} s, Inductor {inductor:.1f} s"
    )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
