"""Reads data sets shard by shard, without indexing them first.

The number of rows of a shard is not known beforehand, so sample numbers cannot be mapped to places in it. Instead every host of
an instance reads the shards in an order of its own, a pseudo-random function of seed, instance, peer and epoch. The unit that
is dealt is a LANE: one shard, or, where shards are few, every n-th document of one. Different lanes share no document. Two
hosts are at the same lane at the same time only by chance, about one in the number of lanes; a run that must exclude even that
indexes its data.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from adloco_p2p.config.run_config import DataConfig
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.data.packing import as_batch, cut, smallest_dtype, starts, terminated
from adloco_p2p.data.sampling import permute, round_keys
from adloco_p2p.data.source import bad_bytes_named, is_heldout, load_split, text_of
from adloco_p2p.data.tokenizer import TokenIds, Tokenizer
from adloco_p2p.errors import ConfigError, StorageError
from adloco_p2p.numerics.batch import Batch

WANTED_LANES = 1024
DOCUMENTS_AT_ONCE = 16
"""Documents that are tokenised together; tokens that no row needs yet are kept, in checkpoints, too."""
MAX_STRIDE = 16
"""The largest n of every n-th document. Reading the others is wasted, so few shards give fewer lanes than wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The lanes of a data set: document d of a shard is in the lane (shard, d mod stride)."""

    num_shards: int
    stride: int

    @classmethod
    def over(cls, num_shards: int) -> "Lanes":
        return cls(num_shards=num_shards, stride=min(MAX_STRIDE, -(-WANTED_LANES // num_shards)))

    def __len__(self) -> int:
        return self.num_shards * self.stride

    def at(self, turn: int, *, seed: int, instance: InstanceId, peer: PeerId, epoch: int) -> tuple[int, int]:
        """Return the shard and residue that a host reads at its `turn`-th lane of an epoch; over all turns, every lane once."""
        keys = round_keys(seed, "lanes", instance, peer, epoch)
        lane = int(permute(np.array([turn], dtype=np.int64), size=len(self), keys=keys)[0])
        return lane % self.num_shards, lane // self.num_shards


@dataclass(slots=True, kw_only=True)
class Cursor:
    """The position of a host in one instance's data, which is all that is saved of a stream. Every field is a JSON value."""

    peer: str
    """The host to which the order belongs."""
    epoch: int = 0
    turn: int = 0
    """Lanes finished in this epoch."""
    documents_seen: int = 0
    """Documents of the shard that were passed, of all its lanes."""
    shard_state: dict[str, Any] | None = None
    """The position of `datasets` in the shard; None: at its beginning."""
    leftover: list[int] = field(default_factory=list)
    """Tokens read and not yet handed out."""


class StreamedFeed:
    """The feed of a data set that is read only as rows are needed."""

    def __init__(self, data: DataConfig, tokenizer: Tokenizer, *, seed: int, cache_dir: Path | None) -> None:
        """Find the data set, without reading its text. Raises ConfigError where that fails."""
        self.vocab_size = tokenizer.vocab_size
        self.sequence_length = data.sequence_length
        self._data = data
        self._tokenizer = tokenizer
        self._seed = seed
        self._cache_dir = cache_dir
        self._dataset = load_split(data, split=data.split, cache_dir=cache_dir)
        self._streams: dict[InstanceId, StreamedRows] = {}
        self._restored: dict[InstanceId, Cursor] = {}
        self._heldout_rows: TokenIds | None = None  # [up to _heldout_wanted, L]
        self._heldout_wanted = 0

    def open(self, *, instance: InstanceId, peer: PeerId, round: int, first_sample: int) -> "StreamedRows":  # noqa: ARG002
        """Continue where this host stopped reading for the instance; the sample number is not used."""
        if instance not in self._streams:
            cursor = self._restored.pop(instance, None)
            if cursor is None or cursor.peer != peer:  # another peer's place has no meaning in this peer's order
                cursor = Cursor(peer=peer)
            self._streams[instance] = StreamedRows(
                self._dataset, self._data, self._tokenizer, cursor, seed=self._seed, instance=instance
            )
        stream = self._streams[instance]
        assert stream.peer == peer, (stream.peer, peer)
        return stream

    def heldout(self, num_rows: int) -> Batch:
        """Return the first rows of the held-out documents in the order of the data set, each document cut at one row's length,
        so that the rows cover many documents; fewer where the data end."""
        if self._heldout_rows is None or num_rows > self._heldout_wanted:
            with bad_bytes_named(self._data):
                self._heldout_rows, self._heldout_wanted = self._read_heldout(num_rows), num_rows
        return _batch(self._heldout_rows[:num_rows], self._data, self._tokenizer)

    def drawn(self, lot: str, num_rows: int) -> Batch:  # noqa: ARG002
        """Return held-out rows, always the same ones, because a stream cannot go back to others."""
        return self.heldout(num_rows)

    def of(self, reads: tuple[InstanceId, ...]) -> "StreamedFeed":
        """Return this feed: a mixture is not streamed."""
        assert not reads
        return self

    def state(self, instance: InstanceId) -> dict[str, object]:
        """Return the place behind the last row taken, with the rest of the last document as tokens."""
        if instance in self._streams:
            return self._streams[instance].state()
        return asdict(self._restored[instance]) if instance in self._restored else {}

    def restore(self, instance: InstanceId, state: dict[str, object]) -> None:
        """Continue from a saved place. Raises StorageError for a state that no stream of this run saved."""
        self._streams.pop(instance, None)
        self._restored.pop(instance, None)
        if state:
            self._restored[instance] = _parse_cursor(state, vocab_size=self.vocab_size)

    def _read_heldout(self, num_rows: int) -> TokenIds:
        split = self._data.heldout_split
        dataset = self._dataset if split is None else load_split(self._data, split=split, cache_dir=self._cache_dir)
        line = np.empty(0, dtype=np.int32)
        for row in dataset:
            text = text_of(row.get(self._data.text_column), self._data.text_column)
            if text and (split is not None or is_heldout(text, self._data.heldout_fraction)):
                tokens = self._tokenizer.encode([text])[0][: self.sequence_length]
                line = np.concatenate([line, *_terminated([tokens], self._tokenizer)])
            if len(line) >= num_rows * self.sequence_length:
                break
        rows, _ = cut(line, sequence_length=self.sequence_length)
        if not len(rows) and split is not None:
            raise ConfigError(
                f"data.heldout_split: {split!r} of {self._data.path!r} is less than one row of {self.sequence_length} tokens;"
                " choose another, or leave it out",
                code="E207",
            )
        if not len(rows):
            raise ConfigError(
                f"data.heldout_fraction: {self._data.heldout_fraction} of {self._data.path!r} is less than one row of "
                f"{self.sequence_length} tokens; raise it, give more text, or name a data.heldout_split of a hub data set",
                code="E207",
            )
        return rows


class StreamedRows:
    """One host's endless stream of rows for one instance. Rows are cut from the documents laid end to end; none is padded."""

    def __init__(
        self, dataset: Any, data: DataConfig, tokenizer: Tokenizer, cursor: Cursor, *, seed: int, instance: InstanceId
    ) -> None:
        self._dataset = dataset
        self._data = data
        self._tokenizer = tokenizer
        self._cursor = cursor
        self._seed = seed
        self._instance = instance
        self._lanes = Lanes.over(dataset.num_shards)
        if cursor.turn >= len(self._lanes):
            raise StorageError(
                f"the saved place in the data is lane {cursor.turn} of {len(self._lanes)}: the data have changed",
                code="E405",
            )
        self._leftover: TokenIds = np.array(cursor.leftover, dtype=smallest_dtype(tokenizer.vocab_size))
        self._lanes_without_text = 0
        self._enter_lane()

    @property
    def peer(self) -> PeerId:
        return PeerId(self._cursor.peer)

    def take(self, num_samples: int) -> Batch:
        """Return the next rows. Raises ConfigError where the data hold no text to train on at all."""
        self.read_ahead(num_samples)
        length = self._data.sequence_length
        taken, left = np.split(self._leftover, [num_samples * length])
        self._leftover = left.copy()  # a view would keep the whole line alive
        return _batch(taken.reshape(num_samples, length), self._data, self._tokenizer)

    def read_ahead(self, num_samples: int) -> None:
        """Read ahead as `SampleStream` describes, with the errors of `take`."""
        wanted = num_samples * self._data.sequence_length
        lines, num_tokens = [self._leftover], len(self._leftover)
        while num_tokens < wanted:
            with bad_bytes_named(self._data):
                texts = [self._next_text() for _ in range(DOCUMENTS_AT_ONCE)]
            read = _terminated(self._tokenizer.encode(texts), self._tokenizer)
            lines += read
            num_tokens += sum(map(len, read))
        self._leftover = np.concatenate(lines)

    def state(self) -> dict[str, object]:
        if self._has_read:  # of a shard that was opened at a place and not read, `datasets` gives the beginning
            self._cursor.shard_state = self._shard.state_dict()
        # `asdict` would copy each token of a long document by itself
        return {**asdict(replace(self._cursor, leftover=[])), "leftover": self._leftover.tolist()}

    def _next_text(self) -> str:
        """Return the next document of the lane that is not held out; after the lane comes the next lane, and after them the
        next epoch."""
        cursor, data = self._cursor, self._data
        while True:
            for row in self._rows:
                self._has_read = True
                is_ours = cursor.documents_seen % self._lanes.stride == self._residue
                cursor.documents_seen += 1
                text = text_of(row.get(data.text_column), data.text_column) if is_ours else ""
                if text and (data.heldout_split is not None or not is_heldout(text, data.heldout_fraction)):
                    self._lanes_without_text = 0
                    return text
            self._lanes_without_text += 1
            if self._lanes_without_text > len(self._lanes):
                raise ConfigError(
                    f"data.path: {data.path!r} holds no text to train on (data.text_column {data.text_column!r}, "
                    f"data.heldout_fraction {data.heldout_fraction}); give documents that are not empty",
                    code="E207",
                )
            self._leave_lane()

    def _leave_lane(self) -> None:
        cursor = self._cursor
        cursor.turn += 1
        if cursor.turn == len(self._lanes):
            cursor.turn, cursor.epoch = 0, cursor.epoch + 1
        cursor.documents_seen, cursor.shard_state = 0, None
        self._enter_lane()

    def _enter_lane(self) -> None:
        """Open the shard of the cursor's lane, at the place where the cursor stands."""
        cursor = self._cursor
        place = {"seed": self._seed, "instance": self._instance, "peer": self.peer, "epoch": cursor.epoch}
        shard, self._residue = self._lanes.at(cursor.turn, **cast(Any, place))
        self._shard = self._dataset.shard(num_shards=self._lanes.num_shards, index=shard)
        if cursor.shard_state is not None:
            self._shard.load_state_dict(cursor.shard_state)
        self._rows: Iterator[dict[str, object]] = iter(self._shard)
        self._has_read = False


def _terminated(documents: list[TokenIds], tokenizer: Tokenizer) -> list[TokenIds]:
    dtype = smallest_dtype(tokenizer.vocab_size)
    return list(terminated(documents, end_of_document=tokenizer.end_of_document, dtype=dtype))


def _batch(rows: TokenIds, data: DataConfig, tokenizer: Tokenizer) -> Batch:
    """Return rows without padding [n, L] as a batch."""
    ids = rows.astype(np.int64)
    return as_batch(ids, ids.copy(), starts(ids, tokenizer.end_of_document) if data.attention == "document" else None)


def _parse_cursor(state: dict[str, object], *, vocab_size: int) -> Cursor:
    """Return the cursor that `state` came from, with the checks for everything that comes from a disk."""
    try:
        cursor = Cursor(**cast(Any, state))
        counts = (cursor.epoch, cursor.turn, cursor.documents_seen)
        is_sound = (
            isinstance(cursor.peer, str)
            and all(type(count) is int and count >= 0 for count in counts)
            and (cursor.shard_state is None or isinstance(cursor.shard_state, dict))
            and all(type(token) is int and 0 <= token < vocab_size for token in cursor.leftover)
        )
    except TypeError:
        is_sound = False
    if not is_sound:
        raise StorageError("the saved place in the data is damaged; remove it and the stream begins anew", code="E405")
    return cursor
