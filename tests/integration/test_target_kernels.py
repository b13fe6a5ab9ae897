"""`cftdiag kernels` from end to end, on a block that is small enough to lower in seconds."""

import json

import pytest

from cftdiag.diagnose import CAUSES

SUBJECT = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = torch.nn.RMSNorm(64), torch.nn.Linear(64, 64)
    def forward(self, x):
        return x + torch.nn.functional.silu(self.up(self.norm(x)))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 64)
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x

def build():
    return Model(), [{"ids": torch.zeros(2, n, dtype=torch.long)} for n in (40, 3000)]
"""


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    path = tmp_path_factory.mktemp("subject") / "tiny.py"
    path.write_text(SUBJECT)
    return f"{path}:build"


def test_report_of_an_absent_gpu(subject, tmp_path, cftdiag_command):
    done = cftdiag_command(
        "kernels",
        "--model",
        subject,
        "--target",
        "h200",
        "--json",
        "--bytecode",
        "--out",
        str(tmp_path / "out"),
        "--html",
        str(tmp_path / "page.html"),
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["schema"], data["target"], data["predicted"], data["device"]["name"]) == (
        "cftdiag.kernels/1",
        "h200",
        True,
        "NVIDIA H200",
    )
    (block,) = data["blocks"]
    assert (block["kind"], block["fqns"]) == ("Block", ["layers.0", "layers.1", "layers.2"])
    assert [g["direction"] for g in block["graphs"]] == ["forward", "backward"]
    forward, backward = block["graphs"]
    names = {k["name"] for k in forward["kernels"]}
    norm = next(k for k in forward["kernels"] if "rsqrt" in k["name"])
    assert any(line["code"] and "self.norm(x)" in line["code"] for line in norm["lines"])
    rows = 2 * 40 * 64 * 4
    assert (norm["read_bytes"], norm["roofline"]["limited_by"]) == (rows + 64 * 4, "memory")
    configurations = norm["compiled"]["configurations"]
    assert norm["compiled"]["arch"] == "sm_90" and configurations
    assert all(c["usage"]["registers"] > 0 and 0 < c["occupancy"] <= 1 for c in configurations)
    assert [e["op"] for e in forward["externs"]] and backward["peak_bytes"] > 0
    written = {p.stem for p in (tmp_path / "out").glob("*forward/*.py")}
    assert written == names | {"output_code"}
    assert any(
        "async_compile.triton" in p.read_text() for p in (tmp_path / "out").glob("*forward/output_code.py")
    )
    assert (tmp_path / "out" / "kernels.json").exists()
    (frame,) = data["bytecode"]
    assert frame["function"].endswith("forward") and frame["by"] in ("depyf", "dis") and frame["text"]
    page = (tmp_path / "page.html").read_text()
    assert page.count("<article") == sum(len(g["kernels"]) for g in block["graphs"])
    assert '<span class="k">def</span>' in page and "tl" in page, "each kernel's text is highlighted"
    again = cftdiag_command("report", str(tmp_path / "out"), "--html", str(tmp_path / "again.html"))
    assert (again.returncode, (tmp_path / "again.html").read_text()) == (0, page), again.stderr
    shown = cftdiag_command("report", str(tmp_path / "out" / "kernels.json")).stdout
    assert "3 x Block  layers.0 .. layers.2" in shown and names <= set(shown.split())
    refused = cftdiag_command("report", str(tmp_path / "out"), "--sarif", str(tmp_path / "x.sarif"))
    assert (
        refused.returncode == 2
        and "is a kernels report; --json and --html are its other forms" in refused.stderr
    )


def test_report_of_the_cpu_target_says_what_changes_between_regimes(subject, cftdiag_command):
    done = cftdiag_command("kernels", "--model", subject, "--target", "cpu")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "generated for the CPU" in text and "3 x Block  layers.0 .. layers.2" in text
    # above 4096 rows of two dimensions Inductor's C++ sums with another helper
    assert "backward, 0/0" in text and "changed" in text
    assert "no GPU took part" not in text


def test_an_unknown_block_names_the_kinds(subject, cftdiag_command):
    done = cftdiag_command("kernels", "--model", subject, "--target", "cpu", "--block", "Attention")
    assert done.returncode == 2 and "no block matches 'Attention'; kinds are Block" in done.stderr


DESCRIBED = """
import json, sys
import torch
from cftdiag.options import CheckOptions
from cftdiag.subject import resolve
from cftdiag.kernels.describe import describe
from cftdiag.passes.messages import KernelsTask

for key, settings in json.loads(sys.argv[1]):
    torch._dynamo.reset()
    origin = resolve(f"cftdiag/diagnose/causes/examples/{key}.py:build")
    options = CheckOptions(model=origin.name, torch_config=settings)
    report = describe(KernelsTask(origin=origin, options=options, target="h200"))
    print(json.dumps([key, bool(settings), report["findings"]]))
"""


@pytest.mark.everything(
    "40 s; unit/test_target_figures.py judges recorded kernels, and the report of an absent GPU stays"
)
def test_examples_yield_their_causes_and_settings_of_remedies_remove_them(warm):
    shown = [cause for cause in CAUSES.values() if "kernels" in cause.seen_by]
    settings = {
        c.key: next(
            (dict(r.change) for r in c.remedies if any(k.startswith("torch.") for k in r.change or ())), None
        )
        for c in shown
    }
    assert {key for key, change in settings.items() if change} == {"kernel_fp64"}
    asked = [(c.key, {}) for c in shown] + [(key, change) for key, change in settings.items() if change]
    done = warm.run(DESCRIBED, json.dumps(asked))
    for line in done.stdout.splitlines():
        key, changed, findings = json.loads(line)
        found = [f for f in findings if f["cause"] == key]
        assert bool(found) is not changed, (key, changed, [f["evidence"] for f in findings])
        assert all(
            f["doc"] == f"docs/causes/{key}.md" and f["where"]["file"].endswith(f"{key}.py") for f in found
        )
    assert len(done.stdout.splitlines()) == len(asked)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "Qwen3-4B"), "no CUDA device here"),
        (("--model", "Qwen3-4B", "--target", "v100"), "v100"),
        (("--model", "Qwen3-4B", "--target", "cpu", "--set", "x"), "is no torch setting"),
        (("--model", "Qwen3-4B", "--target", "cpu", "--length", "0"), "a length must be at least 1, not 0"),
        (("--model", "Qwen3-4B", "--target", "cpu", "--out", "/dev/null/x"), "cannot make /dev/null/x"),
    ],
)
def test_mistakes_are_told_before_anything_is_built(arguments, message, monkeypatch):
    import click
    from click.testing import CliRunner

    from cftdiag.cli.kernels import kernels as command
    from cftdiag.kernels import job

    monkeypatch.setattr(job, "run", lambda *a: pytest.fail("a child was started"))
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2 and message in result.output
    assert isinstance(result.exception, (SystemExit, click.UsageError))
