"""A blob on its way: which chunks are there, which are asked of whom. Reads no network."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.digest import blob_root, chunk_digest
from adloco_p2p.swarm.transfer.chunk_protocol import ChunkIndex

HELP_AFTER_SECONDS = 1.0
"""A chunk that a donor owes for so long is also asked of one that has nothing else to do."""


class Download:
    """One blob from all its donors. It may be handed to the fetcher again: what has come is kept."""

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
        """`make_room`: where the chunks are to be written, each when it is verified; raises RemoteProtocolError where this is
        not the kind of blob that is wanted. `may_hold_chunks`: some may be in their place already. `shuffle` puts the chunks in
        the order in which they are asked for: fetchers with orders of their own can serve each other. `name` is for people."""
        self.root, self.max_chunks, self.name = root, max_chunks, name
        self.completed = asyncio.Event()
        self.bytes_sent = self.bytes_received = 0
        self.num_delivered: Counter[PeerId] = Counter()
        """Right chunks by donor."""
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
        """Missing, and asked of nobody; in the order in which they are to be asked for."""
        self._asked: dict[int, dict[PeerId, float]] = {}
        """Missing, and asked of whom, since when."""
        self._news = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        return self.completed.is_set()

    @property
    def num_verified(self) -> int:
        return len(self._room) - len(self._missing)

    @property
    def verified_bytes(self) -> int:
        """Of the chunks that are in their place."""
        return sum(len(room) for chunk, room in enumerate(self._room) if chunk not in self._missing)

    async def begin(self, index: bytes) -> ChunkIndex:
        """Take the index that a donor sent; the first one counts, all others are equal. Raises RemoteProtocolError if it is
        not the one of the root."""
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
        """The index as it came, the chunks, and those of them that are in their place: what can be served to others meanwhile.
        None where nothing has come."""
        held = frozenset(range(len(self._room))) - self._missing
        return (self._encoded_index, [chunk.toreadonly() for chunk in self._room], held) if held else None

    def take(self, donor: PeerId, held: Container[int], *, is_idle: bool) -> int | None:
        """The next chunk to ask this donor for, of those that it holds: one that nobody was asked for. When there are none
        left, an idle donor is given one that a single other one owes for long, so that the slowest does not decide when the
        download ends."""
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
        """Whether the bytes are those of the index. Slow; may be called in any thread."""
        assert self.index is not None
        return chunk_digest(data) == self.index.chunks[chunk][1]

    def put(self, donor: PeerId, chunk: int, data: bytes | bytearray) -> None:
        """Keep a chunk that is right, unless another donor was quicker."""
        self.num_delivered[donor] += 1
        if chunk in self._missing:
            self._room[chunk][:] = data
            self._verified(chunk)

    def give_back(self, donor: PeerId) -> None:
        """The donor will not deliver what it was asked for."""
        for chunk, donors in list(self._asked.items()):
            if donors.pop(donor, None) is not None and not donors:
                del self._asked[chunk]
                self._free[chunk] = None
        self._news.set()

    async def wait_for_news(self) -> None:
        """Until something may be taken that could not before."""
        self._news.clear()
        await self._news.wait()

    def _verified(self, chunk: int) -> None:
        self._missing.discard(chunk)
        self._free.pop(chunk, None)
        self._asked.pop(chunk, None)
        if not self._missing:
            self.completed.set()


def _is_overdue(asked_since: dict[PeerId, float], now: float) -> bool:
    """Owed by one donor, and for long."""
    return len(asked_since) == 1 and now - min(asked_since.values()) >= HELP_AFTER_SECONDS
