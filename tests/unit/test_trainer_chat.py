"""What the assistant says, told under every template that trl ships, against trl's own training templates and
by hand.
"""

from __future__ import annotations

import copy
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from cftdiag.recipe.packing import IGNORE
from tests.unit import chat_templates
from trainer import chat, demo, turns
from trainer.chat import render
from trainer.turns import Chat

ASK, AGAIN = {"role": "user", "content": "Quo vadis <b>?"}, {"role": "user", "content": "Et tu?"}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "two": [ASK, {"role": "assistant", "content": "Romam <i>eo"}],
    "four": [
        ASK,
        {"role": "assistant", "content": "Romam"},
        AGAIN,
        {"role": "assistant", "content": "  Ego\n"},
    ],
    "thoughts": [
        *(ASK, {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nRomam"}),
        *(AGAIN, {"role": "assistant", "content": "<think>\nsic\n</think>\n\nEgo"}),
    ],
}
NAMES = chat_templates.names()
needs_trl = pytest.mark.skipif(not NAMES, reason="trl is not installed")


def learned(tokenizer: Any, messages: list[dict[str, Any]], train_on: str = "assistant", **more: Any) -> str:
    ids, labels = render(tokenizer, Chat(messages=messages, **more), train_on)
    assert all(label in (token, IGNORE) for token, label in zip(ids, labels, strict=True))
    return str(tokenizer.decode([label for label in labels if label != IGNORE]))


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


@needs_trl
@pytest.mark.parametrize("name", NAMES)
def test_every_template_is_learned_from_where_the_assistant_speaks(name: str) -> None:
    tokenizer = chat_templates.tokenizer(chat_templates.template(name))
    for messages in CONVERSATIONS.values():
        text = learned(tokenizer, messages)
        answers = [
            m["content"].rpartition("</think>")[2].strip() for m in messages if m["role"] == "assistant"
        ]
        places = [text.index(answer) for answer in answers]
        assert places == sorted(places)
        assert "vadis" not in text and "tu?" not in text
        assert not re.search(r"assistant|model|CHATBOT", text, re.IGNORECASE), "a header is given, not said"
        if name != "glm4moe":  # which ends a turn by the next one's first token
            assert re.search(r"<[^<>]+>\s*$", text), "it must learn to stop"


@needs_trl
@pytest.mark.parametrize("name", NAMES)
def test_what_is_learned_is_what_trl_learns(name: str) -> None:
    training = f"{name}_training"
    where = chat_templates.directory()
    assert where is not None
    if not (where / f"{training}.jinja").exists():
        pytest.skip("trl has no training template for it")
    ours = chat_templates.tokenizer(chat_templates.template(name))
    theirs = copy.deepcopy(ours)
    theirs.chat_template = chat_templates.template(training)
    question = [{"role": "user", "content": [{"type": "text", "text": "q"}] if name in SEEING else "q"}]
    prompt = ours.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    compared = 0
    for messages in CONVERSATIONS.values():
        (ids, mine), (their_ids, reference) = (render(t, Chat(messages=messages)) for t in (ours, theirs))
        if ids != their_ids:
            continue  # trl's template writes something else for earlier turns
        compared += 1
        assert {i for i, v in enumerate(mine) if v != IGNORE} <= {
            i for i, v in enumerate(reference) if v != IGNORE
        }
        # Theirs counts as said what the generation prompt gives, and a newline after the end.
        more = [a if a != b else IGNORE for a, b in zip(reference, mine, strict=True)]
        for run, group in itertools.groupby(more, lambda label: label != IGNORE):
            if run:
                assert squeezed(ours.decode(list(group))) in squeezed(prompt)
    assert compared or name in REWRITTEN


SEEING = ("idefics3", "llava_next", "smolvlm")
"""Templates of models that see take a list of parts only."""
REWRITTEN = ("glm4moe", "qwen3_5_think", "qwen3_6", "qwen3_5_nothink")
"""Templates of which trl's training variant writes another text even for one question and answer."""

EXPECTED = {
    ("qwen3", "two"): "<think>\n\n</think>\n\nRomam <i>eo<|im_end|>",
    ("qwen3", "thoughts"): "Romam<|im_end|><think>\nsic\n</think>\n\nEgo<|im_end|>",
    ("qwen3_5_think", "four"): "Romam<|im_end|>\n</think>\n\nEgo<|im_end|>",
    ("qwen3_5_nothink", "two"): "Romam <i>eo<|im_end|>",
    ("qwen3_5_nothink", "thoughts"): "Romam<|im_end|><think>\nsic\n</think>\n\nEgo<|im_end|>",
    ("qwen3_6", "thoughts"): "Romam<|im_end|>sic\n</think>\n\nEgo<|im_end|>",
    ("gptoss", "four"): "<|channel|>final<|message|>Romam<|end|><|channel|>final<|message|>  Ego\n<|return|>",
    ("phi3", "four"): "Romam<|end|>  Ego\n<|end|><|endoftext|>",
    ("deepseekv3", "two"): "Romam <i>eo<\uff5cend\u2581of\u2581sentence\uff5c>",
    ("deepseek_r1_distill", "two"): "Romam <i>eo<\uff5cend\u2581of\u2581sentence\uff5c>",
    ("nemotron_3_nano", "two"): "</think>Romam <i>eo<|im_end|>",
    ("nemotron_3_nano", "thoughts"): "</think>\n\nRomam<|im_end|>sic\n</think>\n\nEgo<|im_end|>",
    ("llama3_1", "four"): "Romam<|eot_id|>Ego<|eot_id|>",
    ("gemma3", "four"): "Romam<end_of_turn>Ego<end_of_turn>",
    ("glm4moe", "four"): "\n<think></think>\nRomam<|user|>\n<think></think>\nEgo",
}


@needs_trl
@pytest.mark.parametrize(("name", "conversation"), EXPECTED)
def test_by_hand(name: str, conversation: str) -> None:
    tokenizer = chat_templates.tokenizer(chat_templates.template(name))
    messages = CONVERSATIONS[conversation]
    assert learned(tokenizer, messages) == EXPECTED[name, conversation]
    ids = render(tokenizer, Chat(messages=messages))[0]
    assert ids == tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"], (
        "the text is the template's"
    )


@needs_trl
def test_thoughts_and_calls_are_said_too() -> None:
    tokenizer = chat_templates.tokenizer(chat_templates.template("gptoss"))
    messages = [ASK, {"role": "assistant", "content": "Romam", "thinking": "hmm"}]
    assert learned(tokenizer, messages) == (
        "<|channel|>analysis<|message|>hmm<|end|><|start|>assistant<|channel|>final<|message|>Romam<|return|>"
    )
    call = {"type": "function", "function": {"name": "road", "arguments": {"to": "Roma"}}}
    tools = [
        {
            "type": "function",
            "function": {
                "name": "road",
                "description": "d",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]
    tokenizer = chat_templates.tokenizer(chat_templates.template("qwen3"))
    messages = [
        *(ASK, {"role": "assistant", "content": "", "tool_calls": [call]}),
        *({"role": "tool", "content": "Appia"}, {"role": "assistant", "content": "Appia eo"}),
    ]
    text = learned(tokenizer, messages, tools=tools)
    assert '{"name": "road", "arguments": {"to": "Roma"}}' in text and text.endswith("Appia eo<|im_end|>")
    assert "tool_response" not in text and "signatures" not in text


@needs_trl
@pytest.mark.parametrize("name", NAMES)
def test_a_content_in_parts_is_learned_as_the_text_that_it_is(name: str) -> None:
    """Also under templates that take texts alone, and would write the list as Python prints it."""
    tokenizer = chat_templates.tokenizer(chat_templates.template(name))
    texts = CONVERSATIONS["two"]
    parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in texts]
    assert render(tokenizer, Chat(messages=parts)) == render(tokenizer, Chat(messages=texts))
    ids = render(tokenizer, Chat(messages=parts))[0]
    assert "Quo vadis <b>?" in tokenizer.decode(ids) and "'type'" not in tokenizer.decode(ids)


def test_parts_that_are_no_text_are_refused() -> None:
    for part, problem in (
        ({"type": "image", "url": "x"}, "message 0 has a part of type image; only texts are trained on"),
        ({"type": "input_audio"}, "of type input_audio"),
        ({"type": "text"}, "an object with a `type`"),
        ("a", "an object with a `type`"),
    ):
        with pytest.raises(ValueError, match=problem):
            chat.check_messages([{"role": "user", "content": [part]}])
    chat.check_messages([{"role": "user", "content": [{"type": "text", "text": ""}]}])


def plain(template: str) -> Any:
    tokenizer = demo.tokenizer()
    tokenizer.chat_template = template
    return tokenizer


LOOP = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
BY_NUMBER = LOOP.replace(
    "for m in messages %}", "for i in range(messages|length) %}{% set m = messages[i] %}"
)


@pytest.mark.parametrize("template", [LOOP, BY_NUMBER, demo.TEMPLATE])
def test_all_the_assistant_or_the_completion(template: str) -> None:
    tokenizer, messages = plain(template), CONVERSATIONS["four"]
    assert learned(tokenizer, messages) == "Romam<|end|>  Ego\n<|end|>"
    assert learned(tokenizer, messages, "completion") == "  Ego\n<|end|>"
    assert learned(tokenizer, messages, "completion", completion=1) == "Romam<|end|>  Ego\n<|end|>"
    assert learned(tokenizer, messages, "all") == tokenizer.apply_chat_template(messages, tokenize=False)
    with pytest.raises(ValueError, match="no completion to train on"):
        learned(tokenizer, messages[:3], "completion")


def test_whitespace_control_survives_the_marks() -> None:
    for left in ("", "-", "+"):
        for right in ("", "-", "+"):
            head, tail = f"{{%{left} for m in messages {right}%}}", f"{{%{left} endfor {right}%}}"
            template = f"a\n  {head}\n  {{{{ m.role }}}}: {{{{ m.content }}}}<|end|>\n  {tail}\n b"
            tokenizer = plain(template)
            form = Chat(messages=CONVERSATIONS["two"])
            found = turns._turns(tokenizer, form)
            assert found is not None and found.text == tokenizer.apply_chat_template(
                form.messages, tokenize=False
            )
            assert [turn for turn, _ in found.spans] == [0, 1]


def test_loops_over_other_things_and_words_in_comments_and_texts_are_left_alone() -> None:
    template = (
        "{# {% for m in messages %} #}{{ '{% for m in messages %}' }}{% raw %}{% for m in messages %}{% endraw %}"
        "{% for key, value in {'a': 1}.items() %}{{ key }}{% endfor %}{% for w in ['x', 'y'] %}{{ w }}{% endfor %}"
        "{% for i in range(2) %}{{ i }}{% endfor %}" + LOOP
    )
    assert learned(plain(template), CONVERSATIONS["two"]) == "Romam <i>eo<|end|>"


def test_a_template_that_cannot_be_told_is_refused_with_the_remedy(tmp_path: Path) -> None:
    tokenizer = plain("{{ messages|length }}" + BY_NUMBER)
    with pytest.raises(ValueError, match=r"rewrites earlier turns.*--chat-template FILE"):
        render(tokenizer, Chat(messages=CONVERSATIONS["four"]))
    file = tmp_path / "chat.jinja"
    file.write_text(demo.TEMPLATE)
    chat.set_template(tokenizer, str(file))
    assert learned(tokenizer, CONVERSATIONS["four"]) == "Romam<|end|>  Ego\n<|end|>"
    with pytest.raises(ValueError, match=r"cannot read the chat template .*none"):
        chat.set_template(tokenizer, str(tmp_path / "none"))
    file.write_text("{{ messages }}\n{% for m in messages %}{{ m.content }")
    with pytest.raises(ValueError, match=rf"{file}:2: .*a chat template is written in Jinja"):
        chat.set_template(tokenizer, str(file))
    file.write_text("{{ raise_exception('roles must alternate') }}")
    chat.set_template(tokenizer, str(file))  # what it says of one message is no mistake of the template


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{{ raise_exception('roles must alternate') }}",
            "cannot render it: TemplateError: roles must alternate",
        ),
        ("{{ messages[0].content + 3 }}", "cannot render it: TypeError"),
        ("{{ messages[7].content }}", "cannot render it: UndefinedError"),
        ("{% for %}", "cannot render it: TemplateSyntaxError"),
        ("{{ messages|length }}", "leaves out what the assistant says"),
        ("", "has no chat template; give --chat-template FILE"),
    ],
)
def test_what_a_template_raises_is_one_line(template: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        render(plain(template), Chat(messages=CONVERSATIONS["two"]))
    assert "\n" not in str(caught.value)
