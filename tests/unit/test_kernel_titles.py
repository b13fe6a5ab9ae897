"""Kernels are named by the modules and lines that they compute."""

from __future__ import annotations

from pathlib import Path

from cftdiag.kernels.titles import owner, title

SOURCE = """\
def silu(x):
    return x.sigmoid() * x

class Norm:
    def forward(self, x):
        class Inner:
            scale = 2
        return x * self.weight

class Attention:
    def forward(self, x):
        return silu(x)
"""


def _line(path: Path, line: int, function: str = "forward") -> dict[str, object]:
    return {"file": str(path), "line": line, "function": function, "code": None}


def test_a_title_says_module_direction_and_line(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(SOURCE)
    kernel = {"name": "triton_per_fused__to_copy__unsafe_v_1", "lines": [_line(file, 8)]}
    assert title(kernel, "forward") == "Norm, model.py:8"
    assert title(kernel, "backward") == "Norm backward, model.py:8"
    kernel["lines"] = [_line(file, 12), _line(file, 11), _line(file, 8), _line(file, 2, "silu")]
    assert title(kernel, "forward") == "Attention + Norm +1, model.py:12"
    assert owner(str(file), 7, "forward") == "Inner"


def test_what_is_not_known_is_named_as_inductor_does(tmp_path: Path) -> None:
    assert title({"name": "triton_poi_fused_0", "lines": []}, "forward") == "triton_poi_fused_0"
    assert owner(str(tmp_path / "gone.py"), 3, "rotate_half") == "rotate_half"
    assert owner(str(tmp_path / "gone.py"), 3, None) == "gone"
