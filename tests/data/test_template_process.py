"""Chat templates that take a processor or the memory, and those that mislead the reader of what they return."""

import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from adloco_p2p.data import template_child, template_process
from adloco_p2p.data.chat_template import MAX_REPEATS, ChatTemplate
from adloco_p2p.data.template_child import Setup
from adloco_p2p.data.template_process import TemplateProcess
from adloco_p2p.errors import AdlocoError, ConfigError, DeviceError
from tests.data.test_chat_template import CHATML, MARKED, TALK, tokenizer_with

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
MACRO = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}"
NEST = "{% if 1 %}" * 3000 + "{% endif %}" * 3000
OPERATORS = "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}"
SECONDS = "more processor time than 1 s, 5 ms for each conversation and 5 s for each megabyte, of which 60 s are kept"
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
        pytest.param("{{ raise_exception('x' * 10 ** 7) }}", f": {'x' * 300}", id="a long error"),
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
    if named == SECONDS:  # the others end by other limits, on a slow machine after more than a second
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
    assert time.process_time() - began < 30


def test_what_a_conversation_does_not_use_is_there_for_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow template is bounded by the data, not by each conversation. By a processor's clock that the template moves: that of
    a process would leave the first conversation 10 ms on any machine."""
    used, taken, limits, answers = 7.25, iter([0.0, 0.0, 1.75, 0.0, 0.0]), list[int](), list[str]()

    def render(conversations: Sequence[Any], **_: object) -> tuple[list[str], list[object]]:
        nonlocal used
        used += next(taken)
        return ["a"], []

    monkeypatch.setattr(template_child, "_processor_seconds", lambda: used)
    monkeypatch.setattr(template_child, "_limit", lambda _, wanted: limits.append(wanted))
    monkeypatch.setattr(template_child, "_write", answers.append)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"[]\n" * 5)))
    limited = {"first_seconds": 0.0, "conversation_seconds": 1.0, "byte_seconds": 0.0, "kept_seconds": 2.0}
    setup = Setup(template="", has_marks=False, special_tokens={}, memory_bytes=0, **limited)
    template_child._serve(setup, render)
    assert limits == [9, 10, 11, 12, 12], "8.25, 9.25, 10.25, 11.25; then 2.25 s are left at 9 s, of which 2 are kept"
    assert [json.loads(answer) for answer in answers] == [{"text": "a", "spans": []}] * 5


def test_a_conversation_finds_no_more_than_a_part_of_the_time_that_others_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("FIRST_SECONDS", 1.0), ("CONVERSATION_SECONDS", 1.0), ("KEPT_SECONDS", 2.0)):
        monkeypatch.setattr(template_process, name, seconds)
    renderer = TemplateProcess(bomb_for("bomb"), has_marks=False, special_tokens={})
    for _ in range(20):
        assert renderer.render([{"role": "user", "content": "a"}]) == ("a", [])
    assert renderer._child is not None
    before, began = sum(psutil.Process(renderer._child.pid).cpu_times()[:2]), child_seconds()
    with pytest.raises(ConfigError, match=r"more processor time than 1 s, 1000 ms for each .*, of which 2 s are kept"):
        renderer.render([{"role": "user", "content": "bomb"}])
    assert child_seconds() - began - before < 5, "2 s, its own second, and a part of one"


@pytest.mark.parametrize("size_bytes", [40 << 20, 28 << 20])
def test_memory_that_a_conversation_takes_while_it_is_read_is_named(size_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "MEMORY_BYTES", 64 << 20)
    renderer = TemplateProcess("a", has_marks=False, special_tokens={})
    with pytest.raises(ConfigError, match="takes too much for a conversation of user: more than 64 MiB of memory"):
        renderer.render([{"role": "user", "content": "a" * size_bytes}])


@pytest.mark.skipif(sys.platform != "linux", reason="its kernel ends the child")
def test_a_template_at_work_ends_with_a_killed_process() -> None:
    program = f"""
import sys
from adloco_p2p.data import template_process
template_process.FIRST_SECONDS = 300.0
renderer = template_process.TemplateProcess({bomb_for("bomb")!r}, has_marks=False, special_tokens={{}})
renderer.render([{{"role": "user", "content": "a"}}])
renderer._child.stdin.write(b'[{{"role": "user", "content": "bomb"}}]\\n')
renderer._child.stdin.flush()
print(renderer._child.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        ended, _, _ = select.select([child], [], [], 240)
        if not ended:
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)
        assert ended


def test_no_process_is_there_before_the_first_conversation(tmp_path: Path) -> None:
    chat = ChatTemplate(tokenizer_with(tmp_path, CHATML))
    assert chat._process._child is None
    chat.close()


def test_the_process_ends_with_its_owner_and_when_it_is_closed() -> None:
    renderers = [TemplateProcess("a", has_marks=False, special_tokens={}) for _ in range(2)]
    children = []
    for renderer in renderers:
        renderer.render([])
        children.append(renderer._child)
    renderers[0].close()
    del renderer, renderers
    assert [child.returncode for child in children if child is not None] == [-signal.SIGKILL] * 2


def test_a_process_that_was_ended_is_no_fault_of_the_template(tmp_path: Path) -> None:
    chat = ChatTemplate(tokenizer_with(tmp_path, CHATML))
    assert chat.encode(TALK) is not None
    assert chat._process._child is not None
    os.kill(chat._process._child.pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match=r"^the process that renders the model's chat template ended with -9; ") as failed:
        chat.encode(TALK)
    assert failed.value.code == "E502"


def test_a_process_that_does_not_start_is_named_with_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "transformers.py").write_text("raise ImportError('no such library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    renderer = TemplateProcess("a", has_marks=False, special_tokens={})
    for _ in range(2):
        with pytest.raises(AdlocoError, match=r"chat template ended with 1: ImportError: no such library"):
            renderer.render([])


def test_no_file_of_the_current_directory_takes_the_place_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "resource.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)
    assert TemplateProcess("a", has_marks=False, special_tokens={}).render([]) == ("a", [])


def test_a_system_without_linux_s_files_limits_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def limit(kind: int, wanted: int) -> None:
        raise AssertionError(f"limits {kind} to {wanted}")

    monkeypatch.setattr(template_child, "_limit", limit)
    monkeypatch.setattr(sys, "platform", "darwin")
    template_child._limit_memory(1)


def bomb_for(content: str) -> str:
    """A template that writes the first message, and has no end where it is `content`."""
    return "{% if messages[0]['content'] == '" + content + "' %}" + LOOPS + "{% endif %}{{ messages[0]['content'] }}"


def child_seconds() -> float:
    """Processor time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
