"""Every command in README and docs is one: its verb and options exist and take what is written; links lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cftdiag.cli.main import VERBS, cli, run
from cftdiag.diagnose import CAUSES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Lines of a shell in code blocks, and commands in running text.
_INLINE = re.compile(r"`(cftdiag [^`]+)`")


def _blocks(text: str) -> Iterator[str]:
    """Lines of code: of fenced blocks of a shell or YAML, and of indented ones."""
    fence = None
    for line in text.splitlines():
        if line.startswith("```"):
            fence = None if fence is not None else line[3:].strip()
        elif fence in ("", "console", "sh", "bash", "yaml") or (fence is None and line.startswith("    ")):
            yield line.strip()


def commands(text: str) -> list[list[str]]:
    """The words of each cftdiag command of a page, without its name."""
    found = []
    lines = [*_blocks(text), *_INLINE.findall(text)]
    for line in lines:
        words = re.sub(r"^(\$|- run:|-\s)\s*", "", line)
        words = re.sub(r"^(\w+=\S+\s+)+", "", words)
        if not words.startswith(("cftdiag ", ".venv/bin/cftdiag ")) or "..." in words:
            continue
        try:
            split = shlex.split(words.split(" > ")[0], comments=True)
        except ValueError:
            continue  # a line of prose with an apostrophe
        if len(split) > 1 and split[1] in VERBS:
            found.append(split[1:])
    return found


#: Words in capitals stand for something of the reader's.
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*(\.json|\.yaml|\.py|\.py:build)?$")
ALL = [(page, words) for page in PAGES for words in commands(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("page", "words"), ALL, ids=[f"{page.name}: {' '.join(words)}"[:90] for page, words in ALL]
)
def test_the_command_is_one(
    page: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in words:
        if word.endswith((".py", ".json", ".yaml")) and not word.startswith(("-", "/")):
            (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / word).write_text("")
    verb, *rest = words
    if any("[" in word or word.endswith(",") or re.fullmatch(r"\w+\|[\w|]+", word) for word in rest):
        return  # a line that describes the forms of a command
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    if not rest or all(_PLACEHOLDER.fullmatch(word) for word in rest):
        return
    try:
        command.make_context(verb, list(rest), parent=click.Context(cli, obj=None))
    except click.exceptions.Exit:
        assert "--help" in rest
    except (click.MissingParameter, click.BadOptionUsage):
        assert len(rest) <= 2, "only a command named in passing leaves out what it needs"
        assert rest[0] in {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
    except click.NoSuchOption as error:
        raise AssertionError(f"{page.name}: {error.format_message()}") from error


def test_there_are_commands_to_look_at() -> None:
    verbs = {words[0] for _, words in ALL}
    assert len(ALL) > 40
    assert {"check", "run", "watch", "report", "kernels", "explain", "fix"} <= verbs


@pytest.mark.parametrize(
    "words",
    [words for _, words in ALL if words[0] in ("explain", "models") and not _PLACEHOLDER.search(words[-1])],
)
def test_cheap_commands_run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([word for word in words if not word.startswith("[")]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_causes_that_pages_name_exist() -> None:
    for page in PAGES:
        for key in re.findall(r"causes/([\w.]+)\.md", page.read_text(encoding="utf-8")):
            assert key in CAUSES or key == "README", f"{page.name} names the cause {key}"
