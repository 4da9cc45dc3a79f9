"""Encoded results of averages: kept for hosts that lost theirs, served to them as blobs, and fetched by them.

The digest that the hosts committed is the root of the blob; its chunks are the parts, and its head has the codec and the size
of the vector. Results of earlier rounds serve only peers that come late, so they lie in files and leave memory to this round.
"""

import errno
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.core.model.ledger_entry import Pledge
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.codecs import values_in
from adloco_p2p.numerics.digest import RESULT_HEAD_BYTES, result_head, result_index
from adloco_p2p.numerics.reduction import part_statistics, statistics_of
from adloco_p2p.numerics.tensor_codec import TensorCodec
from adloco_p2p.swarm.allreduce.allreduce_spec import MAX_PARTS
from adloco_p2p.swarm.allreduce.gram_barrier import has_judged, is_binding
from adloco_p2p.swarm.transfer.chunk_protocol import ChunkIndex
from adloco_p2p.swarm.transfer.chunk_server import Blob
from adloco_p2p.swarm.transfer.download import Download

_PART_OVERHEAD_BYTES = 4096  # the most that one part may add to the size of the vector encoded at once


class Restored(NamedTuple):
    """A decoded result."""

    vector: torch.Tensor
    """float32 [size]; not to be written to."""
    statistics: PseudoGradientStatistics | None
    residual: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedResult:
    """One averaged vector, encoded, as every host holds it."""

    digest: Digest
    codec: TensorCodec
    sent_codec: TensorCodec
    """The codec of the contributions."""
    size: int
    """The number of values."""
    encoded: np.ndarray
    """uint8 [bytes of all parts]; never written to again."""
    parts: tuple[tuple[int, bytes], ...]
    """Length in bytes and SHA-256 of every part, in order."""
    binding: bytes = b""
    """The `GramBarrier.binding` of the average."""
    receipts: tuple[Pledge, ...] = ()
    """The receipts of its reducers; empty for a fetched result."""
    _offsets: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_offsets", (0, *accumulate(num_bytes for num_bytes, _ in self.parts)))

    @property
    def chunks(self) -> list[memoryview]:
        return [self.part(index) for index in range(len(self.parts))]

    @property
    def blob(self) -> Blob:
        return Blob(result_index(self.codec, self.size, self.parts, binding=self.binding), self.chunks)

    def part(self, index: int) -> memoryview:
        return self.encoded.data[self._offsets[index] : self._offsets[index + 1]]

    def restore(self, own: torch.Tensor | None) -> Restored:
        """Decode the vector; from this host's contribution `own`, if there is one, compute the statistics and the residual.

        The statistics are summed part by part as in the average itself, so that every host reports the same norm, to the last
        bit. Where the rule used the Gram matrix they are None, because only that gives them and the result does not contain it.
        The residual is None for a codec whose loss is negligible.
        """
        vector, sums, first = values_in(self.codec, self.encoded, self.size), [], 0
        residual = torch.empty_like(own) if own is not None and self.sent_codec.needs_feedback else None
        for index in range(len(self.parts)):
            values = self.codec.decode(self.part(index))
            last = first + values.numel()
            if not self.codec.is_verbatim:
                vector[first:last] = values
            if own is not None:
                transmitted = self.sent_codec.decode(self.sent_codec.encode(own[first:last]))
                sums.append(part_statistics(transmitted, values))
                if residual is not None:
                    torch.sub(own[first:last], transmitted, out=residual[first:last])
            first = last
        return Restored(vector, None if own is None or has_judged(self.binding) else statistics_of(sums), residual)


def in_file(encoded: np.ndarray, folder: Path | None, *, reserve_bytes: int = 0) -> np.ndarray:
    """Copy bytes to a nameless file, which vanishes with the process or its last reader, and return them as a uint8 memory map.

    The file lies in `folder`, by default that of temporary files. `reserve_bytes` of its disk stay free, for checkpoints.
    Raises OSError.
    """
    if shutil.disk_usage(folder or tempfile.gettempdir()).free < encoded.nbytes + reserve_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        written = 0
        while written < encoded.nbytes:
            written += file.write(encoded.data[written:])
        return np.memmap(file, dtype=np.uint8, mode="c")  # copy-on-write, because torch warns of read-only memory


class ResultStore:
    """Keeps the results of the last rounds by key, and one spare buffer, because touching new memory for every average costs
    more than all the arithmetic on it. The buffer of a verbatim codec, which holds the averaged vector, is never reused."""

    def __init__(self, *, kept_rounds: int, max_bytes: int) -> None:
        """Results of `kept_rounds` rounds before the newest one are kept, of these only what fits in `max_bytes`, the latest
        first."""
        self._results: OrderedDict[Digest, EncodedResult] = OrderedDict()
        self._rounds: dict[Digest, int] = {}
        self._newest = 0
        self._kept_rounds, self._max_bytes = kept_rounds, max_bytes
        self._spare = np.empty(0, dtype=np.uint8)

    def new_buffer(self, num_bytes: int) -> np.ndarray:
        """Return a buffer, uint8 [num_bytes] of any content."""
        spare, self._spare = self._spare, np.empty(0, dtype=np.uint8)
        return spare if spare.nbytes == num_bytes else np.empty(num_bytes, dtype=np.uint8)

    def keep(self, key: Digest, result: EncodedResult, *, round: int, is_fetched: bool = False) -> None:
        """Keep a result. An average that was made here sets the newest round; one that was fetched may be of an earlier one."""
        self._results[key] = result
        self._rounds[key] = round
        self._newest = max(round, self._newest) if is_fetched else round

    def outdated(self) -> list[Digest]:
        """Return the keys of results to forget: those of rounds that no peer repairs any more, or beyond the limit of bytes.

        After a reorg rounds may begin lower again, so the distance to the newest round counts in both directions.
        """
        dropped = [key for key, number in self._rounds.items() if abs(number - self._newest) > self._kept_rounds]
        earlier = [key for key, number in self._rounds.items() if number != self._newest and key not in dropped]
        num_bytes = 0
        for key in sorted(earlier, key=self._rounds.__getitem__, reverse=True):
            num_bytes += self._results[key].encoded.nbytes
            if num_bytes > self._max_bytes:
                dropped.append(key)
        return dropped

    def forget(self, key: Digest, *, may_reuse: bool) -> None:
        """Drop a result; `may_reuse` means that nothing reads its encoded bytes any more, so that they may become the spare
        buffer."""
        result = self._results.pop(key, None)
        self._rounds.pop(key, None)
        if result is not None:
            self._spare_room(result, may_reuse=may_reuse)

    def earlier_in_memory(self) -> tuple[Digest, np.ndarray] | None:
        """Return key and bytes of a result of an earlier round that is still in memory; None if there is none."""
        earlier = ((key, self._results[key].encoded) for key, number in self._rounds.items() if number != self._newest)
        return next(((key, encoded) for key, encoded in earlier if not isinstance(encoded, np.memmap)), None)

    def move(self, key: Digest, encoded: np.ndarray, mapped: np.ndarray, *, may_reuse: bool) -> None:
        """Replace the bytes of a result by their copy in a file, unless another result came for the key. For `may_reuse` see
        `forget`."""
        if (result := self._results.get(key)) is not None and result.encoded is encoded:
            self._results[key] = replace(result, encoded=mapped)
            self._spare_room(result, may_reuse=may_reuse)

    def _spare_room(self, dropped: EncodedResult, *, may_reuse: bool) -> None:
        is_mapped = isinstance(dropped.encoded, np.memmap)
        if is_mapped or dropped.codec.is_verbatim or not may_reuse:
            return
        if not any(other.encoded is dropped.encoded for other in self._results.values()):
            self._spare = dropped.encoded

    def of(self, key: Digest) -> EncodedResult | None:
        return self._results.get(key)

    async def find_blob(self, digest: Digest) -> Blob | None:
        result = self.find(digest)
        return None if result is None else result.blob

    def find(self, digest: Digest) -> EncodedResult | None:
        return next((result for result in self._results.values() if result.digest == digest), None)


class ResultDownload:
    """The download of a result that this peer lacks."""

    def __init__(self, digest: Digest, *, codec: TensorCodec, size: int) -> None:
        """`codec` is that of the contributions, `size` the number of values."""
        self.download = Download(digest, self._make_room, max_chunks=MAX_PARTS, name=f"average {digest:.12}")
        self._codec, self._size = codec, size
        self._result: EncodedResult | None = None

    @property
    def result(self) -> EncodedResult:
        """The fetched result. Only once the download is complete."""
        assert self._result is not None and self.download.is_complete
        return self._result

    def _make_room(self, index: ChunkIndex) -> Sequence[memoryview]:
        codec = self._codec.mean_codec
        head, binding = index.head[:RESULT_HEAD_BYTES], index.head[RESULT_HEAD_BYTES:]
        if (
            head != result_head(codec, self._size)
            or not is_binding(binding)
            or index.num_bytes > codec.num_bytes(self._size) + _PART_OVERHEAD_BYTES * len(index.chunks)
        ):
            raise RemoteProtocolError("offers another result")
        self._result = EncodedResult(
            digest=self.download.root,
            codec=codec,
            sent_codec=self._codec,
            size=self._size,
            encoded=np.empty(index.num_bytes, dtype=np.uint8),
            parts=index.chunks,
            binding=binding,
        )
        return self._result.chunks
