"""How many documents rows hold is known where they are read. transformers looks at the positions instead, in every forward, and
where these lie on a GPU the host waits for all that the GPU has to do, and then the GPU for the host."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch
from transformers import masking_utils


class _Known(local):
    """Of the thread; a context variable is nothing that torch.compile can trace."""

    has_several: bool | None = None
    """None: not known."""
    needs_mask = True


_KNOWN = _Known()
_look = masking_utils.find_packed_sequence_indices


def _documents(position_ids: torch.Tensor) -> torch.Tensor | None:
    """As transformers has it: the number of each token's document [n, L]; none where every row is one."""
    if _KNOWN.has_several is None:
        numbers: torch.Tensor | None = _look(position_ids)
        return numbers
    return (position_ids == 0).cumsum(dim=-1) if _KNOWN.has_several else None


def is_mask_needed() -> bool:
    """Whether attention of this thread's forward has only masks to find where documents begin."""
    return _KNOWN.needs_mask


@contextmanager
def known_documents(*, has_several: bool, needs_mask: bool = True) -> Iterator[None]:
    """Forwards of this thread inside do not look. `has_several`: a row holds more than one document. `needs_mask`: see
    `is_mask_needed`."""
    masking_utils.find_packed_sequence_indices = _documents
    before = _KNOWN.has_several, _KNOWN.needs_mask
    _KNOWN.has_several, _KNOWN.needs_mask = has_several, needs_mask
    try:
        yield
    finally:
        _KNOWN.has_several, _KNOWN.needs_mask = before
