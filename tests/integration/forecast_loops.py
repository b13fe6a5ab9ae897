"""Small real training loops, and what their compiles were: the truth that a forecast is held against."""

from __future__ import annotations

import gc
import itertools
import random
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from cftdiag.capture import Recorder, counting, track
from cftdiag.capture.cache_entries import entries
from cftdiag.forecast.lengths import Shape, collect
from cftdiag.forecast.rank_forecast import RankForecast
from cftdiag.forecast.sweep import sweep

Row = tuple[int, int, str]
VOCABULARY = 96


def causal_lm(name: str) -> nn.Module:
    """A transformers model of two or three tiny layers, with weights."""
    import transformers as hf

    sizes = dict(
        hidden_size=64,
        intermediate_size=112,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
    )
    common: dict[str, Any] = dict(vocab_size=VOCABULARY, num_hidden_layers=2, **sizes)
    configs: dict[str, Callable[[], Any]] = {
        "qwen3": lambda: hf.Qwen3Config(**common),
        "llama": lambda: hf.LlamaConfig(**common),
        "gemma3": lambda: hf.Gemma3TextConfig(
            **common, sliding_window=40, layer_types=["sliding_attention", "full_attention"]
        ),
        "gpt2": lambda: hf.GPT2Config(
            vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=4096
        ),
    }
    config = configs[name]()
    config._attn_implementation = "sdpa"
    config.use_cache = False
    torch.manual_seed(0)
    return hf.AutoModelForCausalLM.from_config(config).train()


class Block(nn.Module):
    """Guards of several forms on the length: a branch on divisibility, one on size, and on request a graph
    break.
    """

    def __init__(self, width: int, broken: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.broken = broken

    def forward(self, x: torch.Tensor, scale: int, mask: torch.Tensor | None) -> torch.Tensor:
        y = self.linear(x)
        if self.broken:
            torch._dynamo.graph_break()
        if x.shape[1] % 8 == 0:
            y = y.relu()
        if x.shape[0] * x.shape[1] > 90:
            y = y * 2
        if mask is not None:
            y = y + mask[:, :, None]
        return x + y / scale


class Toy(nn.Module):
    """Blocks between an embedding and a loss."""

    def __init__(self, width: int = 12, broken: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, broken) for _ in range(3))

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        use_cache: bool = False,
        attention_mask: torch.Tensor | None = None,
    ) -> Any:
        x = self.embedding(input_ids)
        mask = None if attention_mask is None else attention_mask.to(x.dtype)
        for block in self.blocks:
            x = block(x, input_ids.shape[1] + 1, mask)
        return type("Output", (), {"loss": x.pow(2).mean()})


def compiled(model: nn.Module, recorder: Recorder, backend: str = "aot_eager", **kwargs: Any) -> nn.Module:
    """Compile the members of the longest ModuleList in place, as training does."""
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    name, blocks = max(lists, key=lambda item: len(item[1]))
    counted = counting(backend, recorder)
    for i, block in enumerate(blocks):
        block.compile(backend=counted, **kwargs)
        track(block, f"{name}.{i}", recorder)
    recorder.watch(model)
    return model


def stepper(model: nn.Module) -> Callable[[Shape], None]:
    """One training step of a shape: forward, loss, backward."""

    def run(shape: Shape) -> None:
        ids = torch.zeros(shape.batch_size, shape.length, dtype=torch.int64)
        more = {}
        if shape.variant == "padded":
            more["attention_mask"] = torch.ones_like(ids)
            more["attention_mask"][-1, -1] = 0
        model(input_ids=ids, labels=ids, use_cache=False, **more).loss.backward()
        model.zero_grad(set_to_none=True)

    return run


def facts(recorder: Recorder) -> list[tuple[Any, ...]]:
    """What torch did, in order: step, kind, compile id, the graphs that refused, and all guards of each graph
    compiled.

    Which of several failing guards torch names for a graph is left out: it asks those first that failed most
    often, and so names another one after another number of hits. The guards of a graph depend on the compiles
    before it alone.
    """
    events = [
        e
        for e in recorder.events
        if e.kind in ("compile", "recompile", "limit_hit") and e.region != "backward"
    ]
    found: list[tuple[Any, ...]] = [
        (e.step, e.kind, e.compile_id, sorted(str(r.entry) for r in e.reasons)) for e in events
    ]
    # resume functions are left out: torch makes them anew, and not always where they can be found
    codes = {
        (e.code.file, e.code.line, e.code.qualname)
        for e in events
        if e.code is not None and "resume" not in e.code.qualname
    }
    gc.unfreeze()  # a fork hides what its parent had
    functions = [f for f in gc.get_objects() if type(f) is types.FunctionType]
    for code in {
        f.__code__
        for f in functions
        if (f.__code__.co_filename, f.__code__.co_firstlineno, f.__code__.co_qualname) in codes
    }:
        found += [
            (
                "guards",
                entry.compile_id,
                tuple(sorted(re.sub(r"\d{7,}|_dict___\d+", "ADDRESS", text) for text in entry.texts())),
            )
            for entry in entries(code)
        ]
    return found


def shapes_of(stream: Sequence[Row]) -> tuple[Shape, ...]:
    """Distinct shapes of a stream, one row a step."""
    ranks, _ = collect(((i, 0, [row]) for i, row in enumerate(stream, 1)), 1)
    return ranks[0].shapes


def foreseen(
    build: Callable[[], nn.Module], stream: Sequence[Row], warm: Sequence[Row] = (), **kwargs: Any
) -> tuple[RankForecast, list[Any]]:
    """(the forecast, what torch did while it was made)."""
    torch._dynamo.reset()
    with Recorder() as recorder:
        model = compiled(build(), recorder, **kwargs)
        result = sweep(
            stepper(model), shapes_of(stream), recorder, model=model, warm=[Shape(*row) for row in warm]
        )
        found = facts(recorder)
    return result, found


def happened(
    build: Callable[[], nn.Module], stream: Sequence[Row], warm: Sequence[Row] = (), **kwargs: Any
) -> list[Any]:
    """What torch did in the real run of every step; ends at the step that raises."""
    torch._dynamo.reset()
    with Recorder() as recorder:
        run = stepper(compiled(build(), recorder, **kwargs))
        try:
            for row in warm:
                recorder.step = 0
                run(Shape(*row))
            for i, row in enumerate(stream, 1):
                recorder.step = i
                run(Shape(*row))
        except Exception as error:  # noqa: BLE001 - a run that ends at the limit is one of the truths to be foreseen
            print("the run ended:", type(error).__name__)
        return facts(recorder)


def stream(
    seed: int, steps: int, batches: Sequence[int], lengths: Sequence[int], variants: Sequence[str] = ("",)
) -> list[Row]:
    """A random order of shapes."""
    rng = random.Random(seed)
    return [(rng.choice(batches), rng.choice(lengths), rng.choice(variants)) for _ in range(steps)]


def hold(
    build: Callable[[], nn.Module],
    rows: Sequence[Row],
    warm: Sequence[Row] = (),
    exact: bool = True,
    **kwargs: Any,
) -> RankForecast:
    """Assert that the forecast and the real run agree event by event, and whether the map is exact; returns
    the forecast.
    """
    result, before = foreseen(build, rows, warm, **kwargs)
    truth = happened(build, rows, warm, **kwargs)
    different = [pair for pair in itertools.zip_longest(before, truth) if pair[0] != pair[1]]
    assert not different, f"foreseen and happened: {different[:3]}\nnotes {result.notes}"
    kinds = {fact[1] for fact in truth} | {fact[0] for fact in truth}
    assert {"compile", "guards"} <= kinds, "nothing compiled: the test says nothing"
    assert result.exact is exact, result.notes
    assert not result.mistaken
    return result
