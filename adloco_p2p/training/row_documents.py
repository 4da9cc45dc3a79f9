"""Tells forwards how many documents their rows hold, which is known where rows are read. transformers looks at the positions
instead, in every forward; where these lie on a GPU, the host waits for all work of the GPU, and then the GPU for the host."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch
from transformers import masking_utils


class _Known(local):
    """What is known in this thread; torch.compile cannot trace a context variable."""

    has_several: bool | None = None
    """Whether a row holds several documents; None: not known."""
    needs_mask = True


_KNOWN = _Known()
_look = masking_utils.find_packed_sequence_indices


def _documents(position_ids: torch.Tensor) -> torch.Tensor | None:
    """Return the number of each token's document [n, L], as transformers does; None where every row is one document."""
    if _KNOWN.has_several is None:
        numbers: torch.Tensor | None = _look(position_ids)
        return numbers
    return (position_ids == 0).cumsum(dim=-1) if _KNOWN.has_several else None


def is_mask_needed() -> bool:
    """Return whether attention in this thread's forward can find the documents by masks only."""
    return _KNOWN.needs_mask


@contextmanager
def known_documents(*, has_several: bool, needs_mask: bool = True) -> Iterator[None]:
    """Let forwards of this thread use what is known instead of looking at positions. `has_several`: whether a row holds more
    than one document. `needs_mask`: see `is_mask_needed`."""
    masking_utils.find_packed_sequence_indices = _documents
    before = _KNOWN.has_several, _KNOWN.needs_mask
    _KNOWN.has_several, _KNOWN.needs_mask = has_several, needs_mask
    try:
        yield
    finally:
        _KNOWN.has_several, _KNOWN.needs_mask = before
