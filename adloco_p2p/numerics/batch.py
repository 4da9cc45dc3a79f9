"""The input of training: batches of token ids, and the interfaces of the streams and feeds that supply them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from adloco_p2p.core.model.scalars import InstanceId, PeerId

IGNORED_LABEL = -100
"""The label of padding and of every token that the model reads without learning to predict it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`n` rows of `L` tokens, int64: on the CPU when read, on the device during an inner step.

    `labels` are the input ids with `IGNORED_LABEL` at padding, NOT shifted: the computation of the loss shifts them, exactly
    once. Padding stands at the end of a row, so that under causal attention no token reads it.
    """

    input_ids: torch.Tensor  # [n, L]
    labels: torch.Tensor  # [n, L]
    positions: torch.Tensor | None = None  # [n, L]
    """The position of each token in its document, from 0; attention stays within a document. None: each row is one text."""
    documents: tuple[int, ...] = ()  # [n]
    """The number of documents in each row, where there are positions; counted on the CPU, to avoid waiting for a device."""

    def __post_init__(self) -> None:
        assert self.input_ids.shape == self.labels.shape and self.input_ids.ndim == 2, (self.input_ids.shape, self.labels.shape)
        if self.positions is not None and not self.documents:
            object.__setattr__(self, "documents", tuple((self.positions == 0).sum(dim=1).tolist()))

    @property
    def num_samples(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def num_predicted_tokens(self) -> int:
        """The number of labels that some token predicts: all but the first of each row and the ignored ones."""
        return int((self.labels[:, 1:] != IGNORED_LABEL).sum())

    @property
    def has_several_documents(self) -> bool:
        """Whether any row holds more than one document."""
        return any(count > 1 for count in self.documents)

    def rows(self, start: int, stop: int) -> "Batch":
        """Rows `start` to `stop`, as views."""
        part = slice(start, stop)
        return replace(self._each(lambda rows: rows[part]), documents=self.documents[part])

    def pinned(self) -> "Batch":
        """A copy in page-locked memory, which a CUDA device can fetch beside its work."""
        return self._each(torch.Tensor.pin_memory)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device.

        From pinned memory to CUDA the copy is asynchronous; rows that are there already are not copied. On other devices the
        call waits, because only CUDA's allocator keeps pinned rows alive until the copy is done.
        """
        return self._each(lambda rows: rows.to(device, non_blocking=device.type == "cuda"))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        positions = None if self.positions is None else change(self.positions)
        return Batch(
            input_ids=change(self.input_ids), labels=change(self.labels), positions=positions, documents=self.documents
        )


def joined(batches: Sequence[Batch]) -> Batch:
    """Return the rows of all batches, in order, on the CPU."""
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
        """Return the next `num_samples` rows, never fewer. May block on reading."""

    def read_ahead(self, num_samples: int) -> None:
        """Read that many more rows ahead, if reading is slow, without taking them. May block on reading."""


class Feed(Protocol):
    """The data of a run. A feed and its streams are called from one thread at a time."""

    vocab_size: int
    sequence_length: int

    def open(self, *, instance: InstanceId, peer: PeerId, round: int, first_sample: int) -> SampleStream:
        """Open the samples of `instance`, from number `first_sample` of its order on."""

    def heldout(self, num_rows: int) -> Batch:
        """Return the first `num_rows` rows of the fixed held-out set, equal on every peer; fewer if the set is smaller."""

    def drawn(self, lot: str, num_rows: int) -> Batch:
        """Return at most `num_rows` rows drawn with the seed `lot`, equal on every peer: training rows if all of them can be
        read, otherwise held-out rows."""

    def of(self, reads: tuple[InstanceId, ...]) -> "Feed":
        """Return the feed of the own data of these instances, if the run sets any; for no instances, the feed of all data."""

    def state(self, instance: InstanceId) -> dict[str, object]:
        """Return this host's reading position, just after the last row taken, as JSON-able values that callers do not modify;
        empty where `first_sample` determines it."""

    def restore(self, instance: InstanceId, state: dict[str, object]) -> None:
        """Make the stream that is opened next continue from the position `state`."""
