"""Packs token lists into rows: pure functions.

Every document is followed by the end-of-document token, the documents are laid end to end, and the line is cut into rows of
`sequence_length` tokens. Nothing is dropped; an empty document adds nothing. Only the last row is padded.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from adloco_p2p.data.tokenizer import TokenIds
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class _IdRows:
    """The fields and methods that all kinds of rows share."""

    ids: TokenIds
    """[num_rows, L]."""

    @property
    def num_rows(self) -> int:
        return int(self.ids.shape[0])

    @property
    def length(self) -> int:
        """L."""
        return int(self.ids.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows(_IdRows):
    """Packed rows, in memory or mapped from a file."""

    num_tokens: int
    """The number of tokens in all rows; padding follows."""
    end_of_document: int | None = None
    """The id that ends a document, where attention is to stay inside of each; None: a row is read as one text."""

    def __post_init__(self) -> None:
        num_rows, length = self.ids.shape
        assert num_rows * length - length < self.num_tokens <= num_rows * length or self.num_tokens == num_rows == 0

    def gather(self, rows: npt.NDArray[np.int64]) -> Batch:
        """Return the batch of the named rows, in that order. `rows`: [n], repeats allowed."""
        ids = np.take(self.ids, rows, axis=0).astype(np.int64)  # [n, L]
        length = ids.shape[1]
        tokens_before = rows[:, None] * length + np.arange(length)  # [n, L] places in the line of tokens
        labels = np.where(tokens_before < self.num_tokens, ids, IGNORED_LABEL)
        return as_batch(ids, labels, None if self.end_of_document is None else starts(ids, self.end_of_document))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleRows(_IdRows):
    """Rows of whole documents of which a part is learned, in memory."""

    is_learned: npt.NDArray[np.bool_]  # [num_rows, L]
    is_start: npt.NDArray[np.bool_]  # [num_rows, L]: where a document begins

    def gather(self, rows: npt.NDArray[np.int64]) -> Batch:
        """Return the batch of the named rows, in that order. `rows`: [n], repeats allowed."""
        ids = self.ids[rows].astype(np.int64)
        return as_batch(ids, np.where(self.is_learned[rows], ids, IGNORED_LABEL), self.is_start[rows])


class Rows(Protocol):
    """Rows from which batches are made."""

    @property
    def num_rows(self) -> int: ...

    @property
    def length(self) -> int: ...

    def gather(self, rows: npt.NDArray[np.int64]) -> Batch: ...


class ConcatenatedRows:
    """The rows of several data sets as those of one."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts
        self.first_rows = np.cumsum([0, *(part.num_rows for part in parts)])
        """The first row of each part, and the number of all rows."""

    @property
    def num_rows(self) -> int:
        return int(self.first_rows[-1])

    @property
    def length(self) -> int:
        return self._parts[0].length

    def gather(self, rows: npt.NDArray[np.int64]) -> Batch:
        which = np.searchsorted(self.first_rows, rows, side="right") - 1
        batches = [self._parts[part].gather(rows[which == part] - self.first_rows[part]) for part in np.unique(which)]
        # One part after the other is gathered; this restores the order that was asked for.
        order = torch.from_numpy(np.argsort(np.argsort(which, kind="stable"), kind="stable"))
        ids, labels = (torch.cat([getattr(batch, name) for batch in batches])[order] for name in ("input_ids", "labels"))
        if batches[0].positions is None:
            return Batch(input_ids=ids, labels=labels)
        positions = torch.cat([batch.positions for batch in batches if batch.positions is not None])[order]
        return Batch(input_ids=ids, labels=labels, positions=positions)


def starts(ids: npt.NDArray[np.int64], end_of_document: int) -> npt.NDArray[np.bool_]:
    """Return where documents begin in rows [n, L] of documents laid end to end: at the front of a row, and behind every end."""
    is_start = np.ones(ids.shape, dtype=np.bool_)
    is_start[:, 1:] = ids[:, :-1] == end_of_document
    return is_start


def as_batch(ids: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], is_start: npt.NDArray[np.bool_] | None) -> Batch:
    """Return rows [n, L] as a batch. Where documents are known to begin, positions restart and nothing predicts the token."""
    if is_start is None:
        return Batch(input_ids=torch.from_numpy(ids), labels=torch.from_numpy(labels))
    places = np.arange(ids.shape[1], dtype=np.int64)
    positions = places - np.maximum.accumulate(np.where(is_start, places, 0), axis=1)
    labels = np.where(positions == 0, IGNORED_LABEL, labels)
    return Batch(input_ids=torch.from_numpy(ids), labels=torch.from_numpy(labels), positions=torch.from_numpy(positions))


def smallest_dtype(vocab_size: int) -> np.dtype[np.integer]:
    """Return the narrowest type in which rows can be stored: 2 bytes per token where the vocabulary allows it, else 4."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


def terminated(documents: Iterable[TokenIds], *, end_of_document: int, dtype: np.dtype[np.integer]) -> Iterator[TokenIds]:
    """Yield each document that is not empty, followed by the end-of-document token."""
    for document in documents:
        if len(document):
            line = np.empty(len(document) + 1, dtype=dtype)
            line[:-1] = document
            line[-1] = end_of_document
            yield line


def cut(tokens: TokenIds, *, sequence_length: int) -> tuple[TokenIds, TokenIds]:
    """Return the full rows [k, L] of a line of tokens [n], and the rest [n - k L], shorter than a row."""
    full = len(tokens) // sequence_length * sequence_length
    return tokens[:full].reshape(-1, sequence_length), tokens[full:]


def padding_of(num_tokens: int, *, sequence_length: int) -> int:
    """Return how many tokens fill the last row."""
    return -num_tokens % sequence_length


def pack(
    documents: Iterable[TokenIds],
    *,
    sequence_length: int,
    end_of_document: int,
    dtype: np.dtype[np.integer],
    is_cut: bool = False,
) -> TokenRows:
    """Return all documents as rows [ceil(tokens / L), L]; attention stays inside of each document where `is_cut`. Without
    documents there are no rows."""
    lines = list(terminated(documents, end_of_document=end_of_document, dtype=dtype))
    num_tokens = sum(map(len, lines))
    padding = np.full(padding_of(num_tokens, sequence_length=sequence_length), end_of_document, dtype=dtype)
    ids = np.concatenate([*lines, padding]).reshape(-1, sequence_length)
    return TokenRows(ids=ids, num_tokens=num_tokens, end_of_document=end_of_document if is_cut else None)
