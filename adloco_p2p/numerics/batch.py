"""The input of the device room from the data room: rows of token ids, and where they come from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from adloco_p2p.core.model.scalars import InstanceId, PeerId

IGNORED_LABEL = -100
"""Label of padding, and of every token that is read and not learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`n` rows of `L` tokens, int64: on the CPU where they are read, on the device for an inner step.

    `labels` are the input ids with `IGNORED_LABEL` at padding, NOT shifted: the computation of the loss shifts, exactly once.
    Padding stands at the end of a row, so that under causal attention no token reads it.
    """

    input_ids: torch.Tensor  # [n, L]
    labels: torch.Tensor  # [n, L]
    positions: torch.Tensor | None = None  # [n, L]
    """Places in the document, from 0 on, where a row holds several: attention stays inside of each. None: one text a row."""
    documents: tuple[int, ...] = ()  # [n]
    """How many each row holds, where there are positions; counted on the CPU, so that nobody waits for a device to know it."""

    def __post_init__(self) -> None:
        assert self.input_ids.shape == self.labels.shape and self.input_ids.ndim == 2, (self.input_ids.shape, self.labels.shape)
        if self.positions is not None and not self.documents:
            object.__setattr__(self, "documents", tuple((self.positions == 0).sum(dim=1).tolist()))

    @property
    def num_samples(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def num_predicted_tokens(self) -> int:
        """Labels that some token predicts: all but a row's first and its padding."""
        return int((self.labels[:, 1:] != IGNORED_LABEL).sum())

    @property
    def has_several_documents(self) -> bool:
        """In one of its rows."""
        return any(count > 1 for count in self.documents)

    def rows(self, start: int, stop: int) -> "Batch":
        """Rows `start` to `stop`, as views."""
        part = slice(start, stop)
        return replace(self._each(lambda rows: rows[part]), documents=self.documents[part])

    def pinned(self) -> "Batch":
        """A copy in page-locked memory, which a CUDA device can fetch beside its work."""
        return self._each(torch.Tensor.pin_memory)

    def to(self, device: torch.device) -> "Batch":
        """On a device: without waiting for the copy where the rows are pinned, without any where they are there already. Only
        CUDA's allocator keeps rows that their reader has let go until they are copied."""
        return self._each(lambda rows: rows.to(device, non_blocking=device.type == "cuda"))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        positions = None if self.positions is None else change(self.positions)
        return Batch(
            input_ids=change(self.input_ids), labels=change(self.labels), positions=positions, documents=self.documents
        )


def joined(batches: Sequence[Batch]) -> Batch:
    """The rows of all of them, in order, on the CPU."""
    positions = [batch.positions for batch in batches if batch.positions is not None]
    assert len(positions) in (0, len(batches)), "rows of one feed are all packed, or none is"
    return Batch(
        input_ids=torch.cat([batch.input_ids for batch in batches]),
        labels=torch.cat([batch.labels for batch in batches]),
        positions=torch.cat(positions) if positions else None,
        documents=tuple(count for batch in batches for count in batch.documents),
    )


class SampleStream(Protocol):
    """One instance's samples on one host in one round, in order."""

    def take(self, num_samples: int) -> Batch:
        """The next `num_samples` rows; never fewer. May block on reading."""

    def read_ahead(self, num_samples: int) -> None:
        """Read that many more rows ahead where reading takes long; nothing is taken. May block on reading."""


class Feed(Protocol):
    """The data of a run. Called, as its streams are, from one thread at a time."""

    vocab_size: int
    sequence_length: int

    def open(self, *, instance: InstanceId, peer: PeerId, round: int, first_sample: int) -> SampleStream:
        """The samples of `instance` from `first_sample` of its order on."""

    def heldout(self, num_rows: int) -> Batch:
        """The first `num_rows` rows of the fixed held-out set, equal on every peer; fewer where the set is smaller."""

    def drawn(self, lot: str, num_rows: int) -> Batch:
        """Rows that the text `lot` draws, equal on every peer: training rows where all can be read, else held-out ones; fewer
        where there are fewer."""

    def of(self, reads: tuple[InstanceId, ...]) -> "Feed":
        """The feed of the data that these instances have for their own, where the run sets that; of no instances, all data."""

    def state(self, instance: InstanceId) -> dict[str, object]:
        """The position up to which this host has read, behind the last row taken, as JSON-able values that nobody writes to;
        empty where `first_sample` determines it."""

    def restore(self, instance: InstanceId, state: dict[str, object]) -> None:
        """Go on where `state` was taken, with the stream that is opened next."""
