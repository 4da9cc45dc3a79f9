"""Chat templates that take a processor or the memory, and those that mislead the reader of what they return."""

import os
import signal
import time
from pathlib import Path

import pytest

from adloco_p2p.data import template_process
from adloco_p2p.data.chat_template import MAX_REPEATS, ChatTemplate
from adloco_p2p.data.template_process import TemplateProcess
from adloco_p2p.errors import ConfigError
from tests.data.test_chat_template import CHATML, MARKED, TALK, tokenizer_with

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
MACRO = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}"
NEST = "{% if 1 %}" * 3000 + "{% endif %}" * 3000
OPERATORS = "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}"
SECONDS = "more processor time than 1 s, 5 ms for each conversation and 5 s for each megabyte"
MEMORY = "more than 512 MiB of memory"


@pytest.mark.parametrize(
    ("bomb", "named"),
    [
        pytest.param(LOOPS, SECONDS, id="loops in loops"),
        pytest.param(MACRO, SECONDS, id="a macro that calls itself twice"),
        pytest.param("{{ 'x' * 10 ** 10 }}", MEMORY, id="a long text"),
        pytest.param("{{ '%3000000000d' % 1 }}", MEMORY, id="a wide number"),
        pytest.param("{{ [0] * 10 ** 9 }}", MEMORY, id="a long list"),
        pytest.param("{{ 9 ** (9 ** 9) }}", SECONDS, id="one operation without an end"),
        pytest.param("{{ 'x' * 10 ** 6 }}", "1000000 characters, more than 18438", id="a text that fits in memory"),
        pytest.param("{{ raise_exception('x' * 10 ** 8) }}", f": {'x' * 300}", id="a long error"),
        pytest.param(
            "{% for i in range(17) %}{% generation %}x{% endgeneration %}{% endfor %}",
            "17 places marked as generated, more than 8 a message",
            id="many marks",
        ),
        pytest.param("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "maximum recursion depth", id="recursion"),
        pytest.param("{{ range(10 ** 9) }}", "Range too big", id="a range"),
        pytest.param(NEST, "the model's chat template", id="deep blocks"),
        pytest.param(OPERATORS, "the model's chat template", id="deep parentheses"),
    ],
)
def test_a_template_without_an_end_is_a_named_error(
    bomb: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_process, "FIRST_SECONDS", 1.0)
    with pytest.raises(ConfigError, match=r"^data\.messages_column: the model's chat template") as refused:
        ChatTemplate(tokenizer_with(tmp_path, bomb)).encode([("user", "a"), ("assistant", "b")])
    assert named in str(refused.value) and len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("template", "named"),
    [
        pytest.param(CHATML.replace("+ '<|im_end|>'", f"* {MAX_REPEATS + 1}"), "writes 18 texts for", id="repeats"),
        pytest.param("{{ messages[0]['content'] | replace('0', '7') }}", "writes 1 texts for", id="a text that there is not"),
        pytest.param(
            MARKED.replace("message['content']", "message['content'] * (3 if '\ue000' in message['content'] else 1)"),
            "changes the messages' text",
            id="repeats while it is read",
        ),
    ],
)
def test_a_template_that_writes_other_texts_than_the_messages_is_refused(template: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data\.messages_column: the model's chat template") as refused:
        ChatTemplate(tokenizer_with(tmp_path, template)).encode([("user", "a" * 1000), ("assistant", "b" * 1000)])
    assert named in str(refused.value)


def test_many_marked_answers_are_read_in_time_that_grows_with_their_number(tmp_path: Path) -> None:
    """Beside each other: with their square these took a minute."""
    chat = ChatTemplate(tokenizer_with(tmp_path, MARKED))
    began = time.process_time()
    example = chat.encode([("user", "a"), ("assistant", "b")] * 5000)
    assert example is not None and example.is_learned.sum() == 5000 * len("b|\n")
    assert time.process_time() - began < 10


def test_what_a_conversation_does_not_use_is_there_for_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow template is bounded by the data, not by each conversation."""
    monkeypatch.setattr(template_process, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(template_process, "CONVERSATION_SECONDS", 0.01)
    renderer = TemplateProcess("{{ messages[0]['content'] }}", has_marks=False, special_tokens={})
    for _ in range(300):
        assert renderer.render([{"role": "user", "content": "a"}]) == ("a", [])


def test_the_process_ends_with_its_owner_and_when_it_is_closed() -> None:
    renderers = [TemplateProcess("a", has_marks=False, special_tokens={}) for _ in range(2)]
    children = [renderer._child for renderer in renderers]
    renderers[0].close()
    del renderers
    assert [child.returncode for child in children] == [-signal.SIGKILL] * 2


def test_a_process_that_was_ended_is_a_named_error(tmp_path: Path) -> None:
    chat = ChatTemplate(tokenizer_with(tmp_path, CHATML))
    assert chat.encode(TALK) is not None
    os.kill(chat._process._child.pid, signal.SIGKILL)
    with pytest.raises(ConfigError, match=r"takes too much .*: its process ended with -9; choose a tokenizer"):
        chat.encode(TALK)
