"""The state of a download: the chunks that are here, and the donors that the others are asked of. No network."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.digest import blob_root, chunk_digest
from adloco_p2p.swarm.transfer.chunk_protocol import ChunkIndex

HELP_AFTER_SECONDS = 1.0
"""A donor gets no help before this time without data, or without a whole chunk."""
HELP_AFTER_TIMES = 2.0
"""A donor gets help when it has completed no chunk for this many times the time that the helper needs for one. Two donors with
one chunk each that share a slow line are done by then, however it is divided between them: both chunks take twice the time of
one that has the line for itself, and the helper needed at least that time for its own. If no data comes at all, once that time
is enough."""
LEAST_TIMED_BYTES = 1 << 16
"""The time of a chunk with fewer bytes, such as the list of files, is that of a round trip and says little of the rate. It
counts as one of so many bytes."""
UNKNOWN_BYTES_PER_SECOND = 1 << 17
"""The assumed rate of a donor that has delivered nothing yet: 1 Mbit/s. Where it is slower, this costs a copy of a chunk."""


class Download:
    """The download of one blob from all its donors. It keeps the chunks that have come if it is passed to a fetcher again."""

    def __init__(
        self,
        root: Digest,
        make_room: Callable[[ChunkIndex], Sequence[memoryview]],
        *,
        max_chunks: int,
        name: str = "blob",
        may_hold_chunks: bool = False,
        shuffle: Callable[[list[int]], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make_room` returns the memory to which each chunk is written once verified; it raises RemoteProtocolError if this is
        not the kind of blob that was asked for. With `may_hold_chunks` some may be in place already. `shuffle` sets the order
        in which chunks are asked for, because fetchers with different orders can serve each other. `name` is for people."""
        self.root, self.max_chunks, self.name = root, max_chunks, name
        self.completed = asyncio.Event()
        self.bytes_sent = self.bytes_received = 0
        self.num_delivered: Counter[PeerId] = Counter()
        """The number of correct chunks, by donor."""
        self.index: ChunkIndex | None = None
        self._encoded_index = b""
        self._make_room = make_room
        self._may_hold_chunks = may_hold_chunks
        self._shuffle = shuffle
        self._clock = clock
        self._beginning = asyncio.Lock()
        self._room: Sequence[memoryview] = ()
        self._missing: set[int] = set()
        self._free: dict[int, None] = {}
        """The missing chunks that no donor was asked for, in the order in which they are to be asked for."""
        self._asked: dict[int, set[PeerId]] = {}
        """The missing chunks that donors were asked for, with these donors."""
        self._last_chunk: dict[PeerId, float] = {}
        """By donor that owes something: when it last completed a chunk, or was asked for one while it owed none."""
        self._last_data: dict[PeerId, float] = {}
        """By donor that owes something: when data last came from it, or it was asked for a chunk while it owed none."""
        self._seconds_per_byte: dict[PeerId, float] = {}
        """By donor that has delivered something: the pace of its last chunk."""
        self._news = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        return self.completed.is_set()

    @property
    def num_verified(self) -> int:
        return len(self._room) - len(self._missing)

    @property
    def verified_bytes(self) -> int:
        """The bytes of all chunks that are in place."""
        return sum(len(room) for chunk, room in enumerate(self._room) if chunk not in self._missing)

    async def begin(self, index: bytes) -> ChunkIndex:
        """Take the index that a donor sent, and return it decoded. Raises RemoteProtocolError if it does not match the root; so
        all that pass are equal, and only the first is used."""
        if blob_root(index) != self.root:
            raise RemoteProtocolError("its index does not hash to the root")
        async with self._beginning:
            if self.index is None:
                decoded = ChunkIndex.decode(index)
                self._room = self._make_room(decoded)
                self.index, self._encoded_index = decoded, index
                chunks = list(range(len(self._room)))
                self._shuffle(chunks)
                self._missing, self._free = set(chunks), dict.fromkeys(chunks)
                if self._may_hold_chunks:
                    right = await asyncio.to_thread(
                        lambda: [chunk for chunk in chunks if self.is_right(chunk, self._room[chunk])]
                    )
                    for chunk in right:
                        self._verified(chunk)
            return self.index

    def verified(self) -> tuple[bytes, Sequence[memoryview], frozenset[int]] | None:
        """Return what can be served to others meanwhile: the encoded index, the chunks, and the numbers of those in place. None
        if nothing has come."""
        held = frozenset(range(len(self._room))) - self._missing
        return (self._encoded_index, [chunk.toreadonly() for chunk in self._room], held) if held else None

    def take(self, donor: PeerId, held: Container[int], *, num_owed: int, num_donors: int) -> int | None:
        """Return the next chunk to ask this donor for, of those that it holds; None if there is nothing to ask for. The donor
        owes `num_owed` chunks already, and `num_donors` are at work, with this one.

        A chunk that no donor was asked for comes first. A donor gets one more than it can send now only if it has delivered one
        and enough are left for all donors, so that a slow one does not keep chunks that others could send.
        If none is left, an idle donor gets a chunk of a donor that needs help, so that the slowest donor does not determine the
        end of the download.
        """
        chunk = None
        if not num_owed or (donor in self._seconds_per_byte and len(self._free) >= num_donors):
            chunk = next((chunk for chunk in self._free if chunk in held), None)
        if chunk is not None:
            del self._free[chunk]
        elif not num_owed:  # a donor sends what it was asked for last at the end, so that helps most
            open_ones = (chunk for chunk in reversed(self._asked) if chunk in held and self._may_help(donor, chunk))
            chunk = min(open_ones, key=lambda chunk: len(self._asked[chunk]), default=None)
        if chunk is not None:
            self._asked.setdefault(chunk, set()).add(donor)
            if not num_owed:
                self._last_chunk[donor] = self._last_data[donor] = self._clock()
        return chunk

    def _may_help(self, donor: PeerId, chunk: int) -> bool:
        """Return whether all donors that owe the chunk are others, and much slower, or send nothing. A helper may lie, too."""
        seconds = len(self._room[chunk]) * self._seconds_per_byte.get(donor, 1 / UNKNOWN_BYTES_PER_SECOND)
        now = self._clock()
        return donor not in self._asked[chunk] and all(
            now - self._last_data[other] >= max(HELP_AFTER_SECONDS, seconds)
            or now - self._last_chunk[other] >= max(HELP_AFTER_SECONDS, HELP_AFTER_TIMES * seconds)
            for other in self._asked[chunk]
        )

    def is_right(self, chunk: int, data: bytes | bytearray | memoryview) -> bool:
        """Return whether the bytes have the hash in the index. Slow; may be called in any thread."""
        assert self.index is not None
        return chunk_digest(data) == self.index.chunks[chunk][1]

    def put(self, donor: PeerId, chunk: int, data: bytes | bytearray) -> None:
        """Keep a verified chunk, unless another donor was quicker."""
        self.num_delivered[donor] += 1
        now = self._clock()
        self._seconds_per_byte[donor] = (now - self._last_chunk[donor]) / max(len(data), LEAST_TIMED_BYTES)
        self._last_chunk[donor] = now
        if chunk in self._missing:
            self._room[chunk][:] = data
            self._verified(chunk)

    def note_data(self, donor: PeerId) -> None:
        """Note that a part of a chunk has come from this donor."""
        self._last_data[donor] = self._clock()

    def give_back(self, donor: PeerId) -> None:
        """Free the chunks that this donor was asked for and will not deliver."""
        for chunk, donors in list(self._asked.items()):
            donors.discard(donor)
            if not donors:
                del self._asked[chunk]
                self._free[chunk] = None
        self._news.set()

    async def wait_for_news(self) -> None:
        """Wait until a chunk may have become free."""
        self._news.clear()
        await self._news.wait()

    def _verified(self, chunk: int) -> None:
        self._missing.discard(chunk)
        self._free.pop(chunk, None)
        self._asked.pop(chunk, None)
        if not self._missing:
            self.completed.set()
