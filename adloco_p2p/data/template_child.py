"""Renders conversations by one chat template, within limits: the child of `template_process`.

It runs as a file, so that it needs no path to this package; its argument is the process with which it ends. It reads lines of
JSON: first a `Setup`, to which `{}` is the answer, then one conversation per line. For each conversation it writes a line:
`text` and `spans`, the places between generation marks in order; or `refuses`, the template's own error; or `exceeds`, the
limit that it exceeds. The limit of processor time ends the process by SIGXCPU, the memory limit after its answer; only Linux
has the latter.
"""

import ctypes
import json
import math
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ADDED_CHARACTERS = 16 << 10
ADDED_PER_MESSAGE = 1 << 10
"""The characters that a template may add to a conversation, and for each message."""
SPANS_PER_MESSAGE = 8
MAX_REASON = 300
_PR_SET_PDEATHSIG = 1
"""The constant of linux/prctl.h. The signal comes when the thread that started the child ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    template: str
    has_marks: bool
    """Whether the template has `{% generation %}` marks."""
    special_tokens: Mapping[str, Any]
    """Tokens by the names that templates use, and whether the text ends where an answer begins, or goes on."""
    memory_bytes: int
    """Address space on top of what this process uses before the first conversation."""
    first_seconds: float
    conversation_seconds: float
    byte_seconds: float
    """The three parts of the limit of processor time: at first, for each conversation, and for each of its bytes."""
    kept_seconds: float
    """The most time unused by earlier conversations that a conversation may use; the limit is rounded up to a second."""


def main() -> None:
    _end_with(int(sys.argv[1]))
    setup = Setup(**json.loads(sys.stdin.buffer.readline()))
    from transformers.utils.chat_template_utils import render_jinja_template

    _limit(resource.RLIMIT_CORE, 0)
    _limit_memory(setup.memory_bytes)
    _write("{}")
    _serve(setup, render_jinja_template)


def _serve(setup: Setup, render: Callable[..., Any]) -> None:
    too_large = json.dumps({"exceeds": f"more than {setup.memory_bytes >> 20} MiB of memory"})
    seconds = _processor_seconds() + setup.first_seconds
    while True:
        try:
            line = sys.stdin.buffer.readline()
            if not line:
                return
            kept = min(seconds, _processor_seconds() + setup.kept_seconds)
            seconds = kept + setup.conversation_seconds + setup.byte_seconds * len(line)
            _limit(resource.RLIMIT_CPU, math.ceil(seconds))
            answer = json.dumps(_answer(setup, json.loads(line), render))
        except MemoryError:
            answer = too_large
        _write(answer)
        if answer is too_large:  # the rest of a line is no conversation, and memory may have run out in the middle of one
            return


def _answer(setup: Setup, messages: list[dict[str, str]], render: Callable[..., Any]) -> dict[str, Any]:
    try:
        return _rendered(setup, messages, render)
    except MemoryError:
        raise
    except Exception as error:  # other people's program, with errors of its own
        return {"refuses": str(error)[:MAX_REASON] or type(error).__name__}


def _rendered(setup: Setup, messages: list[dict[str, str]], render: Callable[..., Any]) -> dict[str, Any]:
    texts, spans = render(
        [messages],
        chat_template=setup.template,
        return_assistant_tokens_mask=setup.has_marks,
        **setup.special_tokens,
    )
    allowed = ADDED_CHARACTERS + sum(ADDED_PER_MESSAGE + len(message["content"]) for message in messages)
    if len(texts[0]) > allowed:
        return {"exceeds": f"{len(texts[0])} characters, more than {allowed}"}
    # an empty place between marks has nothing to learn
    places = sorted({(first, last) for first, last in spans[0] if first < last}) if spans else []
    if len(places) > SPANS_PER_MESSAGE * len(messages):
        return {"exceeds": f"{len(places)} places marked as generated, more than {SPANS_PER_MESSAGE} a message"}
    return {"text": texts[0], "spans": places}


def _write(answer: str) -> None:
    sys.stdout.write(answer + "\n")
    sys.stdout.flush()


def _end_with(parent: int) -> None:
    """Let the kernel end this process with its parent: a template at work reads nothing, so it would outlive a parent that was
    killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent is gone already")


def _limit(kind: int, wanted: int) -> None:
    """Set the soft limit, as far as the hard one allows."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _limit_memory(more_bytes: int) -> None:
    """Limit the address space to so many bytes more than are in use."""
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _limit(resource.RLIMIT_AS, used + more_bytes)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
