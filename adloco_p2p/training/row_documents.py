"""Whether rows hold several documents is known where they are read. transformers looks at the positions instead, in every
forward, and where these lie on a GPU the host waits for all that the GPU has to do, and then the GPU for the host."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch
from transformers import masking_utils


class _Known(local):
    """Of the thread; a context variable is nothing that torch.compile can trace."""

    is_one_a_row = False


_KNOWN = _Known()
_look = masking_utils.find_packed_sequence_indices


def _documents(position_ids: torch.Tensor) -> torch.Tensor | None:
    """As transformers has it: the number of each token's document [n, L]; none where every row is one."""
    return None if _KNOWN.is_one_a_row else _look(position_ids)


@contextmanager
def known_documents(*, is_one_a_row: bool) -> Iterator[None]:
    """Forwards of this thread inside do not look, if every row is one document."""
    masking_utils.find_packed_sequence_indices = _documents
    before, _KNOWN.is_one_a_row = _KNOWN.is_one_a_row, is_one_a_row
    try:
        yield
    finally:
        _KNOWN.is_one_a_row = before
