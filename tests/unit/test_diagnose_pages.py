"""Every cause has a page, an example and remedies; the documentation is the registry's."""

from __future__ import annotations

import ast
import re
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cftdiag import Subject
from cftdiag.diagnose import CAUSES, pages
from cftdiag.diagnose.engine.cause import Cause, fill
from cftdiag.findings import KINDS, Remedy

DOCS = Path(__file__).resolve().parents[2] / "docs" / "causes"
KEYS = """
tensor.item tensor.tolist data_dependent_branch dynamic_output_shape logging_call print_call module_backward_hook disabled_hook disabled_function
graph_break_in_checkpoint ffi_call autograd_function python_rng_branch rng_seed_call requires_grad_in_graph unsupported_call generic_break
requires_grad batch_dim seq_len
duck_shape int_arg module_int_attr module_float_attr module_bool_attr module_str_attr layer_idx per_layer_attr container_len none_vs_tensor
closure_identity helper_class_identity class_attr global_value global_state grad_mode training_flag dtype stride size_0_1 shape_divisibility
inductor_fusion_threshold inductor_size_regime tensor_type first_call_latch optimizer_lr_float object_identity generic_guard
shared_code_object size_specialized parameter_shape rank_change kv_cache
ac_recompute_other_graph ac_dtype_mismatch constraint_violation limit_not_visible_in_thread late_hook_ignored compiled_region_not_reached
donated_buffer double_backward unused_subclass_output
known_wrong_code
fullgraph_error silent_wrong_numerics rank_divergent_recompile compile_time_depth saved_tensor_hooks_whole_graph cache_miss cudagraph_skip
graph_runs_eager kernel_spills kernel_scalar_access kernel_fp64 reduction_split
""".split()
WITHOUT_EXAMPLE = {
    "generic_guard",  # what no other cause claims: there is no program that shows it for good
    "inductor_fusion_threshold",
    "inductor_size_regime",
    "rank_divergent_recompile",
    "cudagraph_skip",
    "cache_miss",
}
every_cause = pytest.mark.parametrize("cause", CAUSES.values(), ids=list(CAUSES))


def test_public_keys_are_stable() -> None:
    assert sorted(CAUSES) == sorted(KEYS)


def test_documentation_is_current() -> None:
    made = pages.pages()
    assert {p.name for p in DOCS.glob("*.md")} == set(made)
    stale = [name for name, text in made.items() if (DOCS / name).read_text(encoding="utf-8") != text]
    assert not stale, "run: python -m cftdiag.diagnose.pages docs/causes"


@every_cause
def test_page_is_complete(cause: Cause) -> None:
    assert all((cause.title, cause.what, cause.why, cause.fix, cause.says))
    assert set(cause.kinds) <= set(KINDS)
    assert cause.references and all(url.startswith("https://") for url in cause.references)
    assert "```" in cause.fix
    assert len(cause.title) < 80
    assert cause.title.isascii() and cause.what.isascii() and cause.why.isascii() and cause.fix.isascii()


@every_cause
def test_example_is_a_case_of_its_own(cause: Cause) -> None:
    assert bool(cause.example) is (cause.key not in WITHOUT_EXAMPLE)
    if cause.example:
        tree = ast.parse(cause.example)
        assert ast.get_docstring(tree)
        assert "build" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@every_cause
def test_remedies(cause: Cause) -> None:
    assert cause.remedies
    assert not cause.remedies[0].unsafe
    assert [r.unsafe for r in cause.remedies] == sorted(r.unsafe for r in cause.remedies)
    for remedy in cause.remedies:
        filled = fill(remedy, {})
        assert not re.search(r"[{}]", filled.summary)
        # what a check can try is no work by hand, and a step of diagnosis is tried by nobody
        assert (remedy.change is not None) == (remedy.applicability in ("safe", "changes_numbers"))
        assert "{" not in str(filled.change).replace("{'", "").replace("{}", "")


def test_index_names_every_page() -> None:
    index = pages.index()
    assert all(f"({key}.md)" in index for key in CAUSES)


def test_remedy_takes_the_findings_own_names() -> None:
    template = Remedy(summary="mark {argument}, {dim}", change={"mark_dynamic": {"{argument}": ["{dim}"]}})
    assert fill(template, {"argument": "x", "dim": 1}) == Remedy(
        summary="mark x, 1", change={"mark_dynamic": {"x": [1]}}
    )


def test_change_that_lacks_a_fact_is_words_only() -> None:
    template = Remedy(summary="mark {argument}", change={"mark_dynamic": {"{argument}": ["{dim}"]}})
    assert fill(template, {"argument": "x"}) == Remedy(summary="mark x", change=None)


@every_cause
def test_sentences_name_only_facts_that_exist(cause: Cause) -> None:
    known = set(FACTS)
    texts = [cause.says, *(r.summary for r in cause.remedies)]
    used = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
    assert used <= known


FACTS = """
issue pattern fixed versions
why skipped_class
argument attribute name holder dim expected actual guard added multiple limit more dynamic_source
when state code line branch function callee callee_name reason
logging_function reordered_function printer said hint inner applied subclass
type message operator own_wrapper limit_note main_limit hook module step blocks eager compiled rel config rank code_name others count
ops seconds block counts cache
fixed layout meaning name_of_code change setting static_source
""".split()


def test_diagnosis_does_not_need_torch() -> None:
    code = "import sys, cftdiag.diagnose, cftdiag.diagnose.pages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@every_cause
def test_a_check_of_an_example_is_given_its_step_and_hooks(cause: Cause) -> None:
    """A check reads nothing of a file but what ``build()`` returns."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(cause.example, cause.key, "exec"), names)
    own = {name: names[name] for name in ("step", "before_step", "wrap", "check") if name in names}
    own |= {"compile_kwargs": names["COMPILE"]} if "COMPILE" in names else {}
    if not own:
        return
    built = names["build"]()
    assert isinstance(built, Subject) and built.batches
    assert {name: getattr(built, name) for name in own} == own
