"""Renders conversations by one chat template, within limits: the child of `template_process`.

Reads lines of JSON: first a `Setup`, then one conversation each. Writes a line for each conversation: `text` and `spans`, the
places between generation marks in order; or `refuses`, the template's own error; or `exceeds`, what it takes that is too much.
The limit of processor time ends the process by SIGXCPU.
"""

import json
import math
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ADDED_CHARACTERS = 16 << 10
ADDED_PER_MESSAGE = 1 << 10
"""What a template may add to the texts of a conversation."""
SPANS_PER_MESSAGE = 8
MAX_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    template: str
    has_marks: bool
    """Whether it has `{% generation %}` marks."""
    special_tokens: Mapping[str, Any]
    """By the names that templates use."""
    memory_bytes: int
    """Address space, beside that of this process before the first conversation."""
    first_seconds: float
    conversation_seconds: float
    byte_seconds: float
    """Processor time in all: so much, and so much more for each conversation and each byte of it. What is not used is kept."""


def main() -> None:
    setup = Setup(**json.loads(sys.stdin.buffer.readline()))
    from transformers.utils.chat_template_utils import render_jinja_template

    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, _address_space() + setup.memory_bytes)
    seconds = _processor_seconds() + setup.first_seconds
    for line in sys.stdin.buffer:
        seconds += setup.conversation_seconds + setup.byte_seconds * len(line)
        _limit(resource.RLIMIT_CPU, math.ceil(seconds))
        try:
            answer = _rendered(setup, json.loads(line), render_jinja_template)
        except MemoryError:
            answer = {"exceeds": f"more than {setup.memory_bytes >> 20} MiB of memory"}
        except Exception as error:  # a template is a program of others, with errors of its own
            answer = {"refuses": str(error)[:MAX_REASON] or type(error).__name__}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _rendered(setup: Setup, messages: list[dict[str, str]], render: Any) -> dict[str, Any]:
    texts, spans = render(
        [messages],
        chat_template=setup.template,
        return_assistant_tokens_mask=setup.has_marks,
        **setup.special_tokens,
    )
    allowed = ADDED_CHARACTERS + sum(ADDED_PER_MESSAGE + len(message["content"]) for message in messages)
    if len(texts[0]) > allowed:
        return {"exceeds": f"{len(texts[0])} characters, more than {allowed}"}
    # nothing is learned between marks with nothing between them
    places = sorted({(first, last) for first, last in spans[0] if first < last}) if spans else []
    if len(places) > SPANS_PER_MESSAGE * len(messages):
        return {"exceeds": f"{len(places)} places marked as generated, more than {SPANS_PER_MESSAGE} a message"}
    return {"text": texts[0], "spans": places}


def _limit(kind: int, wanted: int) -> None:
    """The soft limit, as far as the hard one lets it."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
