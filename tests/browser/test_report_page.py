"""The HTML report of a real check with data, opened in a real Chromium."""

import json
import random
import shutil

import pytest

from cftdiag.cli.main import run
from cftdiag.report import html
from tests.unit.check_samples import not_viable
from tests.warm import LAUNCHING

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or google-chrome on the PATH"),
]

TINY = {
    "model_type": "qwen3", "vocab_size": 128, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 3, "head_dim": 16, "max_position_embeddings": 2048,
}  # fmt: skip


def cftdiag(warm, *arguments):
    """A command line of ours, its passes in children of the warmed interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        for module in LAUNCHING:
            patch.setattr(f"{module}.ForkServer", warm.lend)
        assert run([*map(str, arguments)]) in (0, 1)


@pytest.fixture(scope="module")
def report(tmp_path_factory, warm):
    """(path of the page, the check as JSON): static shapes, so that there are regimes and findings to show."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "tiny.json").write_text(json.dumps(TINY))
    rows = random.Random(0).choices((24, 32, 40), k=24)
    (folder / "lengths.txt").write_text("\n".join(map(str, rows)))
    options = (
        "--data",
        folder / "lengths.txt",
        "--batch-size",
        2,
        "--dynamic",
        "false",
        "--depth",
        "trace",
        "--no-verify",
    )
    cftdiag(warm, "check", "--model", folder / "tiny.json", *options, "--json", folder / "check.json")
    cftdiag(warm, "report", folder / "check.json", "--html", folder / "page.html")
    return folder / "page.html", json.loads((folder / "check.json").read_text())


@pytest.fixture(scope="module")
def chromium():
    options = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture(params=[("light", 1280), ("dark", 390)], ids=["light desktop", "dark phone"])
def page(request, report, chromium):
    scheme, width = request.param
    context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on(
        "request",
        lambda asked: page.complaints.append(asked.url) if not asked.url.startswith("file:") else None,
    )
    page.goto(report[0].as_uri())
    yield page
    context.close()


def test_it_opens_without_a_complaint_and_asks_nobody(page):
    assert page.complaints == []
    assert "cftdiag check: tiny" in page.title()


def test_it_shows_what_the_check_found(page, report):
    _, check = report
    assert check["forecast"]["regimes"] and check["findings"], "the check has nothing to show"
    assert page.locator("article").count() == len(check["findings"])
    for regime in check["forecast"]["regimes"]:
        row = page.locator("tr", has=page.locator("td", has_text=regime["id"]))
        assert (
            row.filter(
                has_text=f"warm with {regime['representative']['batch_size']} x {regime['representative']['length']}"
            ).count()
            == 1
        )
    assert page.locator(".map li").count() == len(check["blocks"])


def test_the_regime_map_is_drawn_inside_the_page(page):
    box = page.locator("figure svg").bounding_box()
    assert box["width"] > 200 and box["height"] > 100
    assert page.locator("figure svg").get_by_text("batch size B").count() == 1


def test_nothing_sticks_out_to_the_side(page):
    assert page.evaluate("document.scrollingElement.scrollWidth <= window.innerWidth")


@pytest.fixture(scope="module")
def long_page(tmp_path_factory):
    """A page of a run of two ranks with 10,000 compiles and findings of two severities."""
    folder = tmp_path_factory.mktemp("long")
    data = not_viable()
    first = data["compiles"][0]
    data["findings"][0]["explanation"] += " Set torch._dynamo.config." + "capture_scalar_outputs_" * 3 + "."
    data["compiles"] = [
        {
            **first,
            "compile_id": f"0/{i}",
            "step": i // 2 + 1,
            "rank": i % 2,
            "cause": "seq_len" if i > 1 else None,
        }
        for i in range(10_000)
    ]
    path = folder / "page.html"
    path.write_text(html.render(data))
    return path


@pytest.fixture
def opened(long_page, chromium):
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(long_page.as_uri())
    yield page
    context.close()


def test_a_long_page_draws_what_is_looked_at(opened):
    rows = opened.locator("#compile-table tbody tr")
    assert rows.count() == 200
    opened.locator("#search").fill("0/9999 rank 1")
    assert rows.count() == 1
    assert "5000" in rows.first.inner_text()
    opened.locator("#search").fill("")
    opened.locator("#compiles-more").click()
    assert rows.count() == 1200
    assert opened.locator("#compiles-shown").inner_text() == "1200 of 10000"
    assert opened.locator(".lane").count() == 2


def test_findings_are_filtered_and_a_link_shows_them_again(opened):
    articles = opened.locator("article:visible")
    assert articles.count() == 2
    opened.get_by_label("error").uncheck()
    assert articles.count() == 1 and "seq_len" in articles.first.inner_text()
    opened.locator("#search").fill("no such word")
    assert articles.count() == 0
    opened.locator(".map a").first.click()
    assert opened.url.endswith("#finding-1")
    playwright.expect(articles).to_have_count(2)  # the page hears of the new address later


def test_a_link_leads_to_the_cause(opened):
    opened.locator("article a[href='#cause-seq_len']").click()
    assert opened.locator("section:target h3").inner_text().startswith("seq_len")


def test_it_can_be_read_without_its_script(long_page, chromium):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(long_page.as_uri())
    assert page.locator("article:visible").count() == 2
    assert page.locator("#compile-table tbody tr").count() == 200
    assert not page.locator("#search").is_visible()
    context.close()


@pytest.mark.parametrize("width", [390, 768])
def test_long_words_stay_inside_a_narrow_page(long_page, chromium, width):
    context = chromium.new_context(viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto(long_page.as_uri())
    assert page.evaluate("document.scrollingElement.scrollWidth") == width
    assert page.locator("td code").first.evaluate("e => getComputedStyle(e).whiteSpace") == "nowrap"
    context.close()


def test_print_has_no_controls(opened):
    opened.emulate_media(media="print")
    assert not opened.locator("nav").is_visible()
    assert opened.locator("article").first.is_visible()


def test_evidence_unfolds(page):
    evidence = page.locator("article details li").first
    assert not evidence.is_visible()
    page.locator("article summary").first.click()
    assert evidence.is_visible()


def test_text_stands_out_from_the_background(page):
    """Contrast as WCAG 2 defines it; 4.5 is its level AA for text."""
    colours = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    light = sorted(_luminance(colour) for colour in colours)
    assert (light[1] + 0.05) / (light[0] + 0.05) > 4.5


def _luminance(colour):
    parts = [int(n) / 255 for n in colour[colour.index("(") + 1 : colour.index(")")].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
