"""Renders a chat template in a child process with limits.

A template is other people's program. Jinja's sandbox keeps it from files and from Python, but bounds neither its time nor its
memory. So a child renders it (`template_child`): the kernel ends a child that takes too much, and what it returns is small. The
child imports no torch, which would take some 60 MB, and a second at its start.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any

from adloco_p2p.data import template_child
from adloco_p2p.data.template_child import Setup
from adloco_p2p.errors import AdlocoError, ConfigError, DeviceError

MEMORY_BYTES = 512 << 20
FIRST_SECONDS = 10.0
CONVERSATION_SECONDS = 0.005
BYTE_SECONDS = 5e-6
"""Seconds for each byte, which is ample: known templates take some 0.1 ms for a conversation of a kilobyte."""
KEPT_SECONDS = 60.0
SETTING = "data.messages_column"
WHOSE = f"{SETTING}: the model's chat template"
REMEDY = "choose a tokenizer with a plainer template"
MAX_LAST_LINE_BYTES = 300


class TemplateProcess:
    """Renders conversations by one template, in a child that the first conversation starts. The child ends with `close`, with
    this object, with the process, or with the thread that started it."""

    def __init__(self, template: str, *, has_marks: bool, special_tokens: Mapping[str, Any], setting: str = SETTING) -> None:
        """`has_marks`: whether the template has `{% generation %}` marks. `setting`: the name that errors give to the
        template."""
        self._whose = f"{setting}: the model's chat template"
        self._setup = Setup(
            template=template,
            has_marks=has_marks,
            special_tokens=special_tokens,
            memory_bytes=MEMORY_BYTES,
            first_seconds=FIRST_SECONDS,
            conversation_seconds=CONVERSATION_SECONDS,
            byte_seconds=BYTE_SECONDS,
            kept_seconds=KEPT_SECONDS,
        )
        self._child: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] | None = None

    def render(self, messages: Sequence[Mapping[str, str]]) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, and the places between generation marks, in order.

        Raises ConfigError where the template refuses it or exceeds the limits, DeviceError where the child is killed, and
        AdlocoError where it fails otherwise.
        """
        answer = self._ask(self._child or self._start(), messages)
        if "text" in answer:
            return answer["text"], [(first, last) for first, last in answer["spans"]]
        roles = ", ".join(message["role"] for message in messages)[:200]
        if "refuses" in answer:
            raise ConfigError(f"{self._whose} refuses a conversation of {roles}: {answer['refuses']}", code="E207")
        raise ConfigError(
            f"{self._whose} takes too much for a conversation of {roles}: {answer['exceeds']}; {REMEDY}", code="E208"
        )

    def close(self) -> None:
        if self._end is not None:
            self._end()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # `_end` closes it
        self._child = subprocess.Popen(
            # with -P no file of the current directory, or beside the child's own, takes the place of a module
            [sys.executable, "-P", template_child.__file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C reaches the node alone
        )
        self._end = weakref.finalize(self, _end, self._child, self._errors)
        self._ask(self._child, asdict(self._setup))
        return self._child

    def _ask(self, child: "subprocess.Popen[bytes]", value: object) -> dict[str, Any]:
        assert child.stdin is not None and child.stdout is not None
        with suppress(BrokenPipeError):  # its answer will be missing
            child.stdin.write(json.dumps(value, default=str).encode("ascii") + b"\n")
            child.stdin.flush()
        line = child.stdout.readline()
        if line.endswith(b"\n"):
            return dict(json.loads(line))
        code = child.wait()
        if code == -signal.SIGXCPU:
            return {"exceeds": _more_time_than()}
        ended = f"the process that renders the model's chat template ended with {code}"
        if code == -signal.SIGKILL:
            raise DeviceError(f"{ended}; the system kills one where main memory runs out", code="E502")
        last_line = _last_line(self._errors)
        raise AdlocoError(f"{ended}: {last_line}" if last_line else ended)


def _more_time_than() -> str:
    each = f"{CONVERSATION_SECONDS * 1000:.0f} ms for each conversation"
    added = f"{FIRST_SECONDS:.0f} s, {each} and {BYTE_SECONDS * 1e6:.0f} s for each megabyte"
    return f"more processor time than {added}, of which {KEPT_SECONDS:.0f} s are kept"


def _last_line(errors: IO[bytes]) -> str:
    """Return the last line that an ended process wrote on its standard error."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - MAX_LAST_LINE_BYTES))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _end(child: "subprocess.Popen[bytes]", errors: IO[bytes]) -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):  # unread input
            pipe.close()
    child.wait()
    errors.close()
