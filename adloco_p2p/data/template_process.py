"""A chat template at work, in a child process with limits.

A template is a program of others. Jinja's sandbox keeps it from files and from Python, and bounds neither its time nor its
memory. So a child renders it (`template_child`): the kernel ends one that takes too much, and what it returns is small. The
child imports no torch: some 60 MB, and a second at its start.
"""

import json
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from adloco_p2p.data import template_child
from adloco_p2p.data.template_child import Setup
from adloco_p2p.errors import ConfigError

MEMORY_BYTES = 512 << 20
FIRST_SECONDS = 10.0
CONVERSATION_SECONDS = 0.005
BYTE_SECONDS = 5e-6
"""Ample: known templates take some 0.1 ms for a conversation of a kilobyte."""
WHOSE = "data.messages_column: the model's chat template"
REMEDY = "choose a tokenizer with a plainer template"


class TemplateProcess:
    """Renders conversations by one template. `close` ends the child, as the end of this object does, or of the process."""

    def __init__(self, template: str, *, has_marks: bool, special_tokens: Mapping[str, Any]) -> None:
        """`has_marks`: whether the template has `{% generation %}` marks."""
        self._child = subprocess.Popen(
            [sys.executable, "-m", template_child.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the node alone
        )
        self.close = weakref.finalize(self, _end, self._child)
        setup = Setup(
            template=template,
            has_marks=has_marks,
            special_tokens=special_tokens,
            memory_bytes=MEMORY_BYTES,
            first_seconds=FIRST_SECONDS,
            conversation_seconds=CONVERSATION_SECONDS,
            byte_seconds=BYTE_SECONDS,
        )
        self._send(asdict(setup))

    def render(self, messages: Sequence[Mapping[str, str]]) -> tuple[str, list[tuple[int, int]]]:
        """The text of a conversation, and the places between generation marks, in order.

        Raises ConfigError where the template refuses it or takes more than the limits.
        """
        assert self._child.stdout is not None
        self._send(messages)
        line = self._child.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {"exceeds": _end_of(self._child.wait())}
        if "text" in answer:
            return answer["text"], [(first, last) for first, last in answer["spans"]]
        roles = ", ".join(message["role"] for message in messages)[:200]
        if "refuses" in answer:
            raise ConfigError(f"{WHOSE} refuses a conversation of {roles}: {answer['refuses']}", code="E207")
        raise ConfigError(f"{WHOSE} takes too much for a conversation of {roles}: {answer['exceeds']}; {REMEDY}", code="E208")

    def _send(self, value: object) -> None:
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):  # its answer is missing then
            self._child.stdin.write(json.dumps(value, default=str).encode("ascii") + b"\n")
            self._child.stdin.flush()


def _end_of(code: int) -> str:
    """`code`: of the child."""
    if code == -signal.SIGXCPU:
        each = f"{CONVERSATION_SECONDS * 1000:.0f} ms for each conversation"
        return f"more processor time than {FIRST_SECONDS:.0f} s, {each} and {BYTE_SECONDS * 1e6:.0f} s for each megabyte"
    return f"its process ended with {code}"


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):  # what it never read
            pipe.close()
    child.wait()
