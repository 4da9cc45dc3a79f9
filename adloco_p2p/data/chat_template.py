"""Conversations as token ids, and which of these are learned.

The model's own chat template writes a conversation with marks in place of the messages' texts. So the text that the template
adds is known, and control tokens are meant in that text alone. A conversation is made to tokens as a whole, as
`apply_chat_template` does. If one of its messages spells a control token, that is plain text, so each message, and each piece
of the template between them, is made to tokens by itself; a tokenizer that puts a mark before a text then puts one before each.

The learned tokens are those between the template's `{% generation %}` marks. Without such marks they are the assistant's texts,
each with the control token behind it that ends the turn. A token with a part of such a text is learned as well. An answer
without text is read but not learned: it would teach the model to say nothing.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, takewhile

import numpy as np
import numpy.typing as npt

from adloco_p2p.data.template_process import REMEDY, WHOSE, TemplateProcess
from adloco_p2p.data.tokenizer import PretrainedTokenizer, TokenIds, Tokenizer
from adloco_p2p.errors import ConfigError

MARK = "\ue000{}\ue001"
"""The mark for the text of message number n while the template is rendered, in private-use characters, which no template
has."""
_MARK = re.compile("\ue000([0-9]{1,9})\ue001")
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_ROLE = re.compile(r"[\w-]{1,64}")
"""The form of a role: templates write roles as control text, so no role may spell a control token."""
_CALLS = ("tool_calls", "function_call")
"""Keys of messages that hold more of an answer than its text."""
MAX_SHAPES = 256
"""How many orders of roles are remembered with their rendering."""
PLACEHOLDER = "a"
"""An answer, where only the place before its text is wanted."""
MAX_REPEATS = 8
"""How often a template may write each message, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A document of which a part is learned."""

    ids: TokenIds  # [n]
    is_learned: npt.NDArray[np.bool_]  # [n]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of a rendered conversation: text of the template, or the text of one message."""

    text: str
    message: int | None
    answer: int | None
    """The message whose answer contains this piece, and with which it is learned; None where it is not learned."""


class ChatTemplate:
    """The chat template of a tokenizer. It holds a process from the first conversation until `close`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take the template of the tokenizer. Raises ConfigError where it has none."""
        template = tokenizer.chat_template if isinstance(tokenizer, PretrainedTokenizer) else None
        if template is None:
            raise ConfigError(
                "data.messages_column: conversations need the chat template of an instruction model, and this tokenizer has"
                " none; choose the tokenizer of such a model, or give data.prompt_column and data.completion_column",
                code="E208",
            )
        assert isinstance(tokenizer, PretrainedTokenizer)
        self._tokenizer = tokenizer
        self._has_marks = _GENERATION.search(template) is not None
        self._process = TemplateProcess(template, has_marks=self._has_marks, special_tokens=tokenizer.special_tokens)
        # one entry for every order of roles, and the template's texts recur in every conversation
        self._pieces = lru_cache(MAX_SHAPES)(self._pieces_of)
        self._encode_control = lru_cache(MAX_SHAPES)(tokenizer.encode_control)
        self._control = tokenizer.control_tokens

    def close(self) -> None:
        self._process.close()

    def encode(self, messages: Sequence[tuple[str, str]]) -> Example | None:
        """Return a conversation of (role, content) as an example; None where the assistant has no text in it.

        Raises ConfigError where the template refuses it, changes the messages' texts, or does not show where an answer ends.
        """
        roles, contents = tuple(role for role, _ in messages), [content for _, content in messages]
        if not any(role == "assistant" and content.strip() for role, content in messages):
            return None
        pieces = self._pieces(roles)
        wanted, _ = self._render(roles, contents)
        if not _is_joined(pieces, contents, wanted):
            contents = [content.strip() for content in contents]  # many templates trim texts
            if not _is_joined(pieces, contents, wanted):
                raise ConfigError(
                    f"{WHOSE} changes the messages' text, so that the learned tokens are"
                    f" not known, such as in {json.dumps(messages[0])[:200]}; give a tokenizer with a plainer template",
                    code="E208",
                )
        ids, places = self._tokens(pieces, contents)
        num_learned = _counted(
            pieces, contents, lambda piece: piece.answer is not None and bool(contents[piece.answer].strip())
        )
        return Example(ids=ids, is_learned=num_learned[places[:, 1]] > num_learned[places[:, 0]])

    def question(self, text: str) -> TokenIds:
        """Return a user's message, up to the place where an answer's text begins in training. Raises ConfigError."""
        pieces, contents = self._pieces(("user", "assistant")), [text.strip(), PLACEHOLDER]
        before = takewhile(lambda piece: piece.message != 1, pieces)
        ids, places = self._tokens(pieces, contents)
        return ids[places[:, 1] <= sum(len(_text(piece, contents)) for piece in before)]

    def ends(self) -> set[int]:
        """Return the control tokens that are learned with an answer; each of them ends it."""
        control = frozenset(self._control.values())
        learned = [piece.text for piece in self._pieces(("user", "assistant")) if piece.message is None and piece.answer == 1]
        firsts = (next((int(token) for token in self._encode_control(text) if token in control), None) for text in learned)
        return {token for token in firsts if token is not None}  # other text, as a line break, may come before it

    def _tokens(self, pieces: Sequence[Piece], contents: Sequence[str]) -> tuple[TokenIds, npt.NDArray[np.int64]]:
        """Return the token ids [n] of a conversation, and from where to where each of them lies in its text [n, 2]."""
        text = "".join(_text(piece, contents) for piece in pieces)
        ids, places = self._tokenizer.encode_rendered(text)
        num_said = _counted(pieces, contents, lambda piece: piece.message is not None)
        control = np.flatnonzero(np.isin(ids, [*self._control.values()]))
        if not any(self._is_spelled(ids[n], text, places[n], num_said) for n in control):
            return ids, places
        said = self._tokenizer.encode(contents)
        parts = [self._encode_control(piece.text) if piece.message is None else said[piece.message] for piece in pieces]
        stops = np.cumsum([len(_text(piece, contents)) for piece in pieces])
        borders = np.stack([np.concatenate([[0], stops[:-1]]), stops], axis=1)
        return np.concatenate(parts), np.repeat(borders, [len(part) for part in parts], axis=0)

    def _is_spelled(self, token: int, text: str, place: npt.NDArray[np.int64], num_said: npt.NDArray[np.int64]) -> bool:
        """Return whether a message has a part in this control token."""
        start, stop = place
        is_unknown = token == self._tokenizer.unknown and text[start:stop] not in self._control
        return not is_unknown and bool(num_said[stop] > num_said[start])

    def _pieces_of(self, roles: tuple[str, ...]) -> tuple[Piece, ...]:
        """Return the pieces of a conversation with these roles, as the template writes it."""
        rendered, spans = self._render(roles, [MARK.format(number) for number in range(len(roles))])
        marks = list(_MARK.finditer(rendered))
        if len(marks) > MAX_REPEATS * len(roles) or any(int(mark[1]) >= len(roles) for mark in marks):
            raise ConfigError(
                f"{WHOSE} writes {len(marks)} texts for a conversation of {len(roles)}; {REMEDY}",
                code="E208",
            )
        if not self._has_marks:
            spans = self._answers(rendered, marks, roles)
        if not spans:
            raise ConfigError(f"{WHOSE} marks nothing as the assistant's", code="E208")
        borders = {0, len(rendered), *(place for part in (*spans, *(mark.span() for mark in marks)) for place in part)}
        pieces = []
        for start, stop in pairwise(sorted(borders)):
            found = _MARK.fullmatch(rendered, start, stop)
            answer = _answer(spans, marks, start, stop)
            pieces.append(Piece(text=rendered[start:stop], message=int(found[1]) if found else None, answer=answer))
        return tuple(pieces)

    def _answers(self, rendered: str, marks: Sequence[re.Match[str]], roles: tuple[str, ...]) -> list[tuple[int, int]]:
        """Return the places of the assistant's texts, each with the control token that ends it."""
        spans = []
        ends = self._tokenizer.control_tokens
        for mark in marks:
            if roles[int(mark[1])] != "assistant":
                continue
            end = next((end for end in ends if rendered.startswith(end, mark.end())), None)
            if end is None:
                raise ConfigError(
                    f"{WHOSE} has no control token behind the assistant's answers and no"
                    " {% generation %} marks, so the model could not learn to stop; put marks around the answer and its end in"
                    " the tokenizer's chat template",
                    code="E208",
                )
            spans.append((mark.start(), mark.end() + len(end)))
        return spans

    def _render(self, roles: Sequence[str], contents: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, and the places between generation marks. Raises ConfigError."""
        return self._process.render([{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)])


def _answer(spans: Sequence[tuple[int, int]], marks: Sequence[re.Match[str]], start: int, stop: int) -> int | None:
    """Return the message whose text comes first in the span that contains the stretch from `start` to `stop`; None where no
    span does. Both sequences are in order."""
    before = bisect_right(spans, start, key=lambda span: span[0])
    if not before or spans[before - 1][1] < stop:
        return None
    first, last = spans[before - 1]
    place = bisect_left(marks, first, key=re.Match.start)
    return int(marks[place][1]) if place < len(marks) and marks[place].start() < last else None


def _text(piece: Piece, contents: Sequence[str]) -> str:
    return piece.text if piece.message is None else contents[piece.message]


def _counted(pieces: Sequence[Piece], contents: Sequence[str], counts: Callable[[Piece], bool]) -> npt.NDArray[np.int64]:
    """Return how many of the first n characters of a conversation lie in pieces that count, for each n: [number + 1]."""
    does_count = np.repeat([counts(piece) for piece in pieces], [len(_text(piece, contents)) for piece in pieces])
    return np.concatenate([[0], np.cumsum(does_count)])


def _is_joined(pieces: Sequence[Piece], contents: Sequence[str], wanted: str) -> bool:
    """Return whether the pieces with these texts make `wanted`, without making a longer text."""
    place = 0
    for piece in pieces:
        text = _text(piece, contents)
        if not wanted.startswith(text, place):
            return False
        place += len(text)
    return place == len(wanted)


def messages_of(value: object, column: str) -> list[tuple[str, str]]:
    """Return role and content of each message in a cell. Raises ConfigError for a column that holds something else."""
    return [_message(item, column) for item in value] if isinstance(value, list) else [_message(value, column)]


def _message(item: object, column: str) -> tuple[str, str]:
    accepted = "a list of messages, each with a `role` and a `content`, both texts"
    if isinstance(item, dict) and any(item.get(key) for key in _CALLS):
        accepted = f"the call of a tool as text in `content`, as the model is to write it: {' and '.join(_CALLS)} are not read"
    elif isinstance(item, dict):
        role, content = item.get("role"), item.get("content")
        if isinstance(role, str) and isinstance(content, str):
            if _ROLE.fullmatch(role):
                return role, content
            accepted = "a `role` of letters, digits, `_` and `-`"
    raise ConfigError(f"data.messages_column: {column!r} holds {str(item)[:100]!r}; accepted is {accepted}", code="E207")
