"""Cases of the corpus through ``cftdiag.check``, for real: by default a dozen, one of each family, and those that
were never recorded.

What the passes of the others said is judged in ``tests/unit/test_corpus_recordings.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cases.expect import CASES, expected, hold
from tests.recordings.corpus import recordings
from tests.warm import Warm

RECORDED = {file.stem for file in recordings()}
LIVE = {
    "01_item_max_seqlen", "03_logger_warning_once", "06_moe_where_nonzero", "08_ac_break_falls_to_eager", "13_lora_first_block_requires_grad",
    "15_seqlen_storm_static", "24_new_mask_mod_closure", "25_autocast_dtype_flip", "42_config_limit_thread_local", "44_late_registered_hook",
    "47_saved_tensor_hooks_offload", "51_control_clean_block", "61_two_breaks_in_a_block",
}  # fmt: skip
SEE = pytest.mark.everything("twelve others are live; what this one's passes said is judged from a recording")


def live(case: Path) -> bool:
    return case.stem in LIVE or case.stem not in RECORDED


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.stem, marks=[] if live(case) else SEE) for case in CASES]
)
def test_case(case: Path, warm: Warm) -> None:
    code = "import sys; from tests.cases import runner; runner.main(sys.argv[1:])"
    line = json.loads(warm.run(code, str(case), cpu=900).stdout)
    assert "report" in line, line.get("error")
    hold(line["report"], expected(case))


def test_the_live_ones_exist() -> None:
    assert {case.stem for case in CASES} >= LIVE
