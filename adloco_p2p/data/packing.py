"""Token lists to rows: pure functions.

Every document is followed by the end-of-document token, the documents are laid end to end, and the line is cut into rows of
`sequence_length` tokens. Nothing is dropped; an empty document adds nothing. Only the last row is padded.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from adloco_p2p.data.tokenizer import TokenIds
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """Packed rows, in memory or mapped from a file."""

    ids: TokenIds
    """[num_rows, L]; behind `num_tokens`, padding."""
    num_tokens: int

    def __post_init__(self) -> None:
        num_rows, length = self.ids.shape
        assert num_rows * length - length < self.num_tokens <= num_rows * length or self.num_tokens == num_rows == 0

    @property
    def num_rows(self) -> int:
        return int(self.ids.shape[0])

    def gather(self, rows: npt.NDArray[np.int64]) -> Batch:
        """The batch of the named rows, in that order. `rows`: [n], repeats allowed."""
        ids = np.take(self.ids, rows, axis=0).astype(np.int64)  # [n, L]
        length = ids.shape[1]
        tokens_before = rows[:, None] * length + np.arange(length)  # [n, L] places in the line of tokens
        labels = np.where(tokens_before < self.num_tokens, ids, IGNORED_LABEL)
        return Batch(input_ids=torch.from_numpy(ids), labels=torch.from_numpy(labels))


def smallest_dtype(vocab_size: int) -> np.dtype[np.integer]:
    """The narrowest type in which rows are stored: 2 bytes per token where the vocabulary allows it, else 4."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


def terminated(documents: Iterable[TokenIds], *, end_of_document: int, dtype: np.dtype[np.integer]) -> Iterator[TokenIds]:
    """Each document that is not empty, followed by the end-of-document token."""
    for document in documents:
        if len(document):
            line = np.empty(len(document) + 1, dtype=dtype)
            line[:-1] = document
            line[-1] = end_of_document
            yield line


def cut(tokens: TokenIds, *, sequence_length: int) -> tuple[TokenIds, TokenIds]:
    """Full rows [k, L] of a line of tokens [n], and the rest [n - k L], shorter than a row."""
    full = len(tokens) // sequence_length * sequence_length
    return tokens[:full].reshape(-1, sequence_length), tokens[full:]


def padding_of(num_tokens: int, *, sequence_length: int) -> int:
    """How many tokens fill the last row."""
    return -num_tokens % sequence_length


def pack(
    documents: Iterable[TokenIds], *, sequence_length: int, end_of_document: int, dtype: np.dtype[np.integer]
) -> TokenRows:
    """All documents as rows [ceil(tokens / L), L]. No documents, no rows."""
    lines = list(terminated(documents, end_of_document=end_of_document, dtype=dtype))
    num_tokens = sum(map(len, lines))
    padding = np.full(padding_of(num_tokens, sequence_length=sequence_length), end_of_document, dtype=dtype)
    return TokenRows(ids=np.concatenate([*lines, padding]).reshape(-1, sequence_length), num_tokens=num_tokens)
