"""``cftdiag.Monitor`` in a process: what it sees, that it changes nothing, that it puts everything back."""

from __future__ import annotations

from pathlib import Path

import pytest

from cftdiag.monitor import report
from tests.warm import Warm

HEAD = """
import logging, sys
sys.path.insert(0, "tests/integration")
import torch
import cftdiag
import monitor_programs as p
"""


def body(code: str) -> str:
    import textwrap

    return HEAD + textwrap.dedent(code)


def test_nothing_is_left_behind_and_nothing_changes(warm: Warm, tmp_path: Path) -> None:
    code = """
        from torch._C._dynamo.eval_frame import set_guard_complete_hook
        from torch._dynamo.callback import callback_handler
        from torch._dynamo.utils import counters
        from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

        def train(monitored):
            torch._dynamo.reset()
            counters.clear()
            model, optimizer = p.build("aot_eager")
            calls = [layer._compiled_call_impl for layer in model.layers]
            log = logging.getLogger("torch.__trace")
            before = dict(hooks)
            if monitored:
                with cftdiag.Monitor(model, run_dir=sys.argv[1], guards=True, warmup_steps=1, quiet=True) as m:
                    p.train(model, optimizer, [3, 3, 5, 6, 3])
                assert m.steps == 5
                assert m._recorder.problems == [], m._recorder.problems
            else:
                p.train(model, optimizer, [3, 3, 5, 6, 3])
            # torch's own handler takes itself off at the first record.
            assert dict(hooks) == before and {type(h).__module__.split(".")[0] for h in log.handlers} <= {"torch"}, log.handlers
            assert [layer._compiled_call_impl for layer in model.layers] == calls
            assert not callback_handler.start_callbacks and not callback_handler.end_callbacks
            previous = set_guard_complete_hook(None)
            assert previous is None, previous
            return [w.clone() for w in model.parameters()], dict(counters["stats"]), dict(counters["frames"])

        plain, watched = train(False), train(True)
        assert all(torch.equal(a, b) for a, b in zip(plain[0], watched[0]))
        assert plain[1:] == watched[1:], (plain[1:], watched[1:])
        """
    warm.run(body(code), str(tmp_path / "run"))


def test_what_a_recompile_does(warm: Warm) -> None:
    code = """
        def train(**options):
            torch._dynamo.reset()
            model, optimizer = p.build()
            reached = []
            try:
                with cftdiag.Monitor(model, warmup_steps=2, quiet=True, **options) as m:
                    p.train(model, optimizer, [3, 3, 3, 5, 3], reached.append)
            except cftdiag.monitor.MonitorAlarm as alarm:
                return m, reached, alarm
            return m, reached, None

        m, reached, alarm = train()
        assert (reached, alarm) == ([1, 2, 3, 4, 5], None)
        assert [(a.kind, a.step, a.block) for a in m.alarms] == [("recompile_after_warmup", 4, "layers.0")]

        # Raised where the step ends, not inside the compiler, and only by alarms that were asked to.
        m, reached, alarm = train(on_recompile="raise")
        assert reached == [1, 2, 3], reached
        assert alarm.alarm.step == 4 and "seq_len" in str(alarm), alarm

        seen, alarms = [], []
        m, reached, alarm = train(on_recompile=seen.append, on_alarm=alarms.append)
        assert [(e.kind, e.step, e.detail.cause, e.detail.batch) for e in seen] == [("recompile", 4, "seq_len", (2, 5))]
        assert [a.kind for a in alarms] == ["recompile_after_warmup"] and reached[-1] == 5

        def broken(event):
            raise KeyError("the callback's own bug")
        m, reached, alarm = train(on_recompile=broken)
        assert reached[-1] == 5 and alarm is None

        m, reached, alarm = train(raise_on=["compile_budget"], compile_budget_s=1e-6)
        assert reached == [] and alarm.alarm.kind == "compile_budget", (reached, alarm)
        """
    done = warm.run("import cftdiag.monitor\n" + body(code))
    assert done.stderr.count("internal error") == 1
    assert "the callback's own bug" in done.stderr


def test_bugs_of_ours_cost_one_warning(warm: Warm, tmp_path: Path) -> None:
    code = """
        from cftdiag.monitor import alarms, journal, torch_watch

        def bug(*args, **kwargs):
            raise ZeroDivisionError("a bug of ours")
        journal.Journal.event = journal.Journal.step = journal.Journal.state = bug
        alarms.Rules.feed = torch_watch.Watched.install = torch_watch.Watched.note = bug
        model, optimizer = p.build()
        with cftdiag.Monitor(model, run_dir=sys.argv[1], warmup_steps=1) as m:
            p.train(model, optimizer, [3, 3, 5])
        print(m.steps)
        """
    done = warm.run(body(code), str(tmp_path / "run"))
    assert done.stdout == "3\n"
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_steps_are_counted_by_optimizers_or_by_hand(warm: Warm) -> None:
    code = """
        model, one = p.build()
        two = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
        with cftdiag.Monitor(quiet=True) as m:
            p.train(model, one, [3, 3], lambda step: two.step())
            assert m.steps == 2, m.steps
        with cftdiag.Monitor(quiet=True) as m:
            p.train(model, one, [3, 3, 3], lambda step: m.step())
            assert m.steps == 3, m.steps
        p.train(model, one, [3])
        assert m.steps == 3
        # The same monitor once more, and two at once.
        with m, cftdiag.Monitor(quiet=True) as other:
            p.train(model, one, [3, 7])
            assert [e.step for e in m.events if e.kind == "recompile"] == [2] == [e.step for e in other.events if e.kind == "recompile"]
        """
    warm.run(body(code))


def test_a_compiled_optimizer_is_not_touched(warm: Warm) -> None:
    code = """
        from torch._dynamo.utils import counters

        def train(monitored):
            torch._dynamo.reset()
            counters.clear()
            model = p.Model()
            optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
            step = torch.compile(optimizer.step, backend="eager")
            def loop():
                for _ in range(4):
                    model(torch.ones(2, 3, p.DIM)).sum().backward()
                    step()
            if monitored:
                with cftdiag.Monitor(model):
                    loop()
            else:
                loop()
            return dict(counters["stats"]), {k: dict(v) for k, v in counters.items() if "break" in k}

        plain, watched = train(False), train(True)
        assert plain == watched, (plain, watched)
        """
    assert "call Monitor.step()" in warm.run(body(code)).stderr


def test_the_last_step_ends_the_process_with_success(warm: Warm, tmp_path: Path) -> None:
    code = """
        model, optimizer = p.build()
        with cftdiag.Monitor(model, run_dir=sys.argv[1], max_steps=2, quiet=True):
            p.train(model, optimizer, [3, 3, 3, 3])
        print("never")
        """
    assert warm.run(body(code), str(tmp_path / "run")).stdout == ""
    assert report(tmp_path / "run")["steps"] == 2


def test_a_limit_and_a_block_that_never_runs(warm: Warm, tmp_path: Path) -> None:
    code = """
        torch._dynamo.config.recompile_limit = 3
        model, optimizer = p.build()
        model.idle = p.Block()
        model.idle.compile(backend="eager")
        with cftdiag.Monitor(model, run_dir=sys.argv[1], warmup_steps=3, quiet=True) as m:
            p.train(model, optimizer, [3, 4, 5, 6, 7, 8])
        found = [(a.kind, a.block) for a in m.alarms]
        assert ("limit_hit", "layers.0") in found, found
        assert [block for kind, block in found if kind == "never_run"] == ["idle"], found
        from cftdiag.monitor import report
        data = report(sys.argv[1])
        assert data["verdict"] == "not_viable"
        assert {"limit_hit", "error"} <= {f["kind"] for f in data["findings"]}, data["findings"]
        assert [(h["limit"], h["limit_kind"], h["cause"]) for h in data["limit_hits"]][0] == (3, "recompile_limit", "seq_len"), data["limit_hits"]
        """
    warm.run(body(code), str(tmp_path / "run"))


def test_the_root_is_found_without_a_model(warm: Warm, tmp_path: Path) -> None:
    code = """
        model, optimizer = p.build()
        with cftdiag.Monitor(quiet=True) as m:
            p.train(model, optimizer, [3, 5])
        assert {e.block for e in m.events if e.kind == "compile"} == {"layers.0"}, [e.block for e in m.events]
        torch._dynamo.reset()
        whole = torch.compile(p.Model(), backend="eager", dynamic=False)
        optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
        with cftdiag.Monitor(quiet=True) as m:
            p.train(whole, optimizer, [3, 5, 5])
        assert {e.block for e in m.events if e.kind == "recompile"} == {"<root>"}, [e.block for e in m.events]
        """
    warm.run(body(code))


def test_guard_misses_are_counted_exactly(warm: Warm, tmp_path: Path) -> None:
    code = """
        model, optimizer = p.build()
        p.train(model, optimizer, [3, 4, 5])
        with cftdiag.Monitor(model, run_dir=sys.argv[1], guards=2, quiet=True) as m:
            p.train(model, optimizer, [5, 3, 4, 5])
        from cftdiag.monitor import report
        (counts,) = report(sys.argv[1])["guards"]
        entries = {(e["block"], e["entry"]): e for e in counts["entries"]}
        # Most recently used first: 5 matches at once, 3 passes 5 and 4, 4 passes 3 and 5, 5 passes 4 and 3; the other blocks follow the first.
        assert {k: (e["hits"], e["misses"]) for k, e in entries.items() if k[0] == "layers.0"} == {
            ("layers.0", "0/0"): (1, 2), ("layers.0", "0/1"): (1, 2), ("layers.0", "0/2"): (2, 2)}, entries
        assert {k: (e["hits"], e["misses"]) for k, e in entries.items() if k[0] == "layers.1"} == {
            ("layers.1", "0/0"): (1, 0), ("layers.1", "0/1"): (1, 0), ("layers.1", "0/2"): (2, 0)}, entries
        guards = [g["guard"] for e in counts["entries"] for g in e["guards"]]
        assert guards and all("size mismatch at index 1" in g for g in guards), guards
        assert counts["lookups"] == 12 and counts["misses"] == 0 and counts["samples"] > 0 and counts["us_per_step"] > 0
        """
    warm.run(body(code), str(tmp_path / "run"))


@pytest.mark.parametrize(
    "steps",
    [
        20_000,
        pytest.param(
            100_000, marks=pytest.mark.everything("a fifth of the steps shows any object kept a step")
        ),
    ],
)
def test_memory_stays_bounded_over_many_steps(warm: Warm, tmp_path: Path, steps: int) -> None:
    code = """
        import tracemalloc
        from cftdiag.monitor import load_run

        steps = int(sys.argv[2])
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        block = p.Block()
        block.compile(backend="eager")
        x = torch.ones(2, 3, p.DIM)
        with cftdiag.Monitor(block, run_dir=sys.argv[1], quiet=True) as m, torch.no_grad():
            block(x)
            for _ in range(1000):
                optimizer.step()
            tracemalloc.start()
            for _ in range(steps - 1000):
                optimizer.step()
            grown, peak = tracemalloc.get_traced_memory()
        assert m.steps == steps
        # A batch of steps in flight and nothing else.
        assert grown < 500_000 and peak < 5_000_000, (grown, peak)
        run = load_run(sys.argv[1])
        assert len(run.steps) == steps and run.steps[-1].step == steps
        size = sum(f.stat().st_size for f in (run.path / "events").iterdir())
        assert size < 30 * steps, size
        """
    warm.run(body(code), str(tmp_path / "run"), str(steps))


@pytest.mark.parametrize(
    "option", [{"on_recompile": "panic"}, {"exchange": "mail"}, {"plan": "/no/such/plan.json"}]
)
def test_bad_options_are_refused(option: dict[str, str]) -> None:
    from cftdiag.monitor import Monitor

    with pytest.raises(ValueError, match=r"give|cannot read the plan"):
        Monitor(**option)  # type: ignore[arg-type]
