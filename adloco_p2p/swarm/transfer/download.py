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
"""A chunk that a donor has owed for this time is also asked of a donor that has nothing else to do."""


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
        self._asked: dict[int, dict[PeerId, float]] = {}
        """The missing chunks that donors were asked for: by chunk and donor, since when."""
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

    def take(self, donor: PeerId, held: Container[int], *, is_idle: bool) -> int | None:
        """Return the next chunk to ask this donor for, of those that it holds: one that no donor was asked for.

        If none is left, an idle donor gets a chunk that a single other donor has owed for long, so that the slowest donor does
        not determine the end of the download. None if there is nothing to ask for.
        """
        now = self._clock()
        chunk = next((chunk for chunk in self._free if chunk in held), None)
        if chunk is not None:
            del self._free[chunk]
        elif is_idle:
            overdue = (i for i, since in self._asked.items() if donor not in since and _is_overdue(since, now))
            chunk = next((chunk for chunk in overdue if chunk in held), None)
        if chunk is not None:
            self._asked.setdefault(chunk, {})[donor] = now
        return chunk

    def is_right(self, chunk: int, data: bytes | bytearray | memoryview) -> bool:
        """Return whether the bytes have the hash in the index. Slow; may be called in any thread."""
        assert self.index is not None
        return chunk_digest(data) == self.index.chunks[chunk][1]

    def put(self, donor: PeerId, chunk: int, data: bytes | bytearray) -> None:
        """Keep a verified chunk, unless another donor was quicker."""
        self.num_delivered[donor] += 1
        if chunk in self._missing:
            self._room[chunk][:] = data
            self._verified(chunk)

    def give_back(self, donor: PeerId) -> None:
        """Free the chunks that this donor was asked for and will not deliver."""
        for chunk, donors in list(self._asked.items()):
            if donors.pop(donor, None) is not None and not donors:
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


def _is_overdue(asked_since: dict[PeerId, float], now: float) -> bool:
    """Return whether a chunk has been owed for long, and by a single donor."""
    return len(asked_since) == 1 and now - min(asked_since.values()) >= HELP_AFTER_SECONDS
