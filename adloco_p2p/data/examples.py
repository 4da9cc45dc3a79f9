"""Rows of documents of which a part is learned: conversations, and prompts with completions.

A row holds whole documents side by side: positions restart in each, and attention stays inside it. A document that is longer
than a row loses its end; a document without anything left to learn is skipped. All rows lie in memory.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from adloco_p2p.config.run_config import DataConfig
from adloco_p2p.data.chat_template import ChatTemplate, Example, messages_of
from adloco_p2p.data.packing import ExampleRows, smallest_dtype
from adloco_p2p.data.source import columns_of, text_of
from adloco_p2p.data.tokenizer import Tokenizer
from adloco_p2p.errors import ConfigError

logger = logging.getLogger(__name__)


class ExampleReader:
    """Reads rows of a data set as examples, by the columns that the configuration names, until `close`."""

    def __init__(self, data: DataConfig, tokenizer: Tokenizer) -> None:
        """Open the chat template where one is needed. Raises ConfigError for a tokenizer without one."""
        self._data = data
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer) if data.messages_column is not None else None

    def close(self) -> None:
        if self._template is not None:
            self._template.close()

    @property
    def sequence_length(self) -> int:
        """Tokens of a row that the model reads."""
        return self._data.sequence_length

    def identity(self, row: Mapping[str, object]) -> str:
        """Return the key that decides the side of the held-out split of a row that was read: what is read of it, so that copies
        with other ids or times in their messages lie on one side."""
        messages = self._data.messages_column
        if messages is None:
            return json.dumps([row.get(column) for column in columns_of(self._data)])
        said = [{"content": content, "role": role} for role, content in messages_of(row.get(messages), messages)]
        return json.dumps([said])

    def read(self, row: Mapping[str, object]) -> Example | None:
        """Return the row as an example; None where nothing of it is learned within a row's length. Raises ConfigError for a
        cell of another kind."""
        if self._template is not None:
            assert self._data.messages_column is not None
            example = self._template.encode(messages_of(row.get(self._data.messages_column), self._data.messages_column))
        else:
            example = self._completion(row)
        if example is None:
            return None
        length = self.sequence_length
        is_learned = example.is_learned[:length].copy()
        is_learned[:1] = False  # nothing predicts a document's first token
        return Example(ids=example.ids[:length].copy(), is_learned=is_learned) if is_learned.any() else None

    def _completion(self, row: Mapping[str, object]) -> Example | None:
        prompt_column, completion_column = columns_of(self._data)
        prompt, completion = (
            text_of(row.get(prompt_column), prompt_column, setting="data.prompt_column"),
            text_of(row.get(completion_column), completion_column, setting="data.completion_column"),
        )
        if not completion.strip():
            return None
        before, learned = self._tokenizer.encode([prompt, completion])
        ids = np.concatenate([before.astype(np.int64), learned.astype(np.int64), [self._tokenizer.end_of_document]])
        return Example(ids=ids, is_learned=np.arange(len(ids)) >= len(before))


def examples_of(dataset: Any, reader: ExampleReader) -> Iterator[tuple[str, Example]]:
    """Yield identity and example of each row of an indexed data set, in order, and count the rows without anything to learn in
    the log. Raises ConfigError, with the number of the row, for a cell of another kind."""
    num_rows = num_skipped = 0
    for row in dataset:
        num_rows += 1
        try:
            example = reader.read(row)
        except ConfigError as error:
            raise ConfigError(f"{error} (row {num_rows})", code=error.code) from error
        if example is not None:
            yield reader.identity(row), example
        else:
            num_skipped += 1
    if num_skipped:
        logger.warning("%d of %d rows have nothing to learn within %d tokens", num_skipped, num_rows, reader.sequence_length)


def pack_examples(examples: Iterable[Example], *, sequence_length: int, vocab_size: int, padding: int) -> ExampleRows:
    """Return rows [k, L] of whole examples in their order; an example that does not fit behind the last one begins a new
    row."""
    rows: list[list[Example]] = []
    room = 0
    for example in examples:
        size = len(example.ids)
        assert 0 < size <= sequence_length
        if size > room:
            rows.append([])
            room = sequence_length
        rows[-1].append(example)
        room -= size
    ids = np.full((len(rows), sequence_length), padding, dtype=smallest_dtype(vocab_size))
    is_learned = np.zeros(ids.shape, dtype=np.bool_)
    is_start = np.zeros(ids.shape, dtype=np.bool_)
    for number, row in enumerate(rows):
        place = 0
        for example in row:
            stop = place + len(example.ids)
            ids[number, place:stop], is_learned[number, place:stop], is_start[number, place] = (
                example.ids,
                example.is_learned,
                True,
            )
            place = stop
        is_start[number, place : place + 1] = True  # padding is a document of its own
    return ExampleRows(ids=ids, is_learned=is_learned, is_start=is_start)
