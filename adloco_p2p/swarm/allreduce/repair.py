"""Results of averages, as encoded: kept for hosts that lost theirs, served to them, and fetched by them.

The digest that the hosts committed decides alone: a part is believed because it hashes to its line in a table whose hashes hash
to the digest. So parts may come from any mixture of donors. The lengths of the parts stand in the table, too, but not in the
digest: donors that cut the result differently are kept apart, because one of them lies.

    fetcher --HELLO(digest)--> donor --VERDICT, TABLE--> fetcher --WANT(part)--> donor --DATA--> fetcher
"""

import asyncio
import struct
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch

from adloco_p2p.core.model.types import Digest, PeerId, PseudoGradientStatistics
from adloco_p2p.errors import AveragingError, RemoteProtocolError
from adloco_p2p.numerics.codecs import TensorCodec, mean_codecs
from adloco_p2p.numerics.digest import part_digest, result_digest
from adloco_p2p.numerics.reduction import part_statistics, statistics_of
from adloco_p2p.swarm.allreduce.allreduce_spec import MAX_PARTS
from adloco_p2p.swarm.allreduce.handshake import GO, Hello, HelloReply, Purpose, decode_table, encode_table, refusal
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind, Pacing, StreamLost

_OUTSTANDING = 4  # parts asked of one donor at a time
_MAX_DONORS = 8
_TABLE_BYTES = 36 * MAX_PARTS
_WANT = struct.Struct("<I")
_PART_OVERHEAD_BYTES = 4096  # that coding a part by itself may cost beside coding the vector at once


Table = tuple[tuple[int, bytes], ...]
"""Bytes and SHA-256 of every part, in order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedResult:
    """One averaged vector as every host holds it."""

    digest: Digest
    codec: TensorCodec
    sent_codec: TensorCodec
    """Of the contributions."""
    size: int
    """Values."""
    encoded: np.ndarray
    """uint8 [bytes of all parts]; never written to again."""
    parts: Table
    _offsets: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_offsets", (0, *accumulate(num_bytes for num_bytes, _ in self.parts)))

    def part(self, index: int) -> memoryview:
        return self.encoded.data[self._offsets[index] : self._offsets[index + 1]]

    def restore(self, own: torch.Tensor | None) -> tuple[torch.Tensor, PseudoGradientStatistics | None]:
        """The vector, float32 [size], and the scalars of it and of this host's contribution, if there is one.

        Summed part by part as in the average itself, so that every host reports the same norm, to the last bit.
        """
        vector, sums, first = torch.empty(self.size), [], 0
        for index in range(len(self.parts)):
            values = self.codec.decode(self.part(index))
            last = first + values.numel()
            vector[first:last] = values
            if own is not None:
                transmitted = self.sent_codec.decode(self.sent_codec.encode(own[first:last]))
                sums.append(part_statistics(transmitted, values))
            first = last
        return vector, None if own is None else statistics_of(sums)


class ResultStore:
    """The results of the last rounds by key; and one spare buffer, because touching new memory for every average costs more
    than all the arithmetic on it."""

    def __init__(self, *, kept_rounds: int, max_bytes: int) -> None:
        """`kept_rounds` before the newest one; of these only what fits in `max_bytes` together with the newest."""
        self._results: OrderedDict[Digest, EncodedResult] = OrderedDict()
        self._rounds: dict[Digest, int] = {}
        self._newest = 0
        self._kept_rounds, self._max_bytes = kept_rounds, max_bytes
        self._spare = np.empty(0, dtype=np.uint8)

    def new_buffer(self, num_bytes: int) -> np.ndarray:
        """uint8 [num_bytes], of any content."""
        spare, self._spare = self._spare, np.empty(0, dtype=np.uint8)
        return spare if spare.nbytes == num_bytes else np.empty(num_bytes, dtype=np.uint8)

    def keep(self, key: Digest, result: EncodedResult, *, round: int, is_fetched: bool = False) -> None:
        """An average that was made here says which round it is now; one that was fetched may be of a round that is over."""
        self._results[key] = result
        self._rounds[key] = round
        self._newest = max(round, self._newest) if is_fetched else round

    def outdated(self) -> list[Digest]:
        """Keys of results that are to be forgotten: of rounds that nobody repairs any more, or more than there is room for.
        Rounds may begin lower again: another history counts then, and those of the old one are far away too."""
        dropped = [key for key, number in self._rounds.items() if abs(number - self._newest) > self._kept_rounds]
        num_bytes = sum(result.encoded.nbytes for key, result in self._results.items() if key not in dropped)
        for key, result in self._results.items():
            if num_bytes > self._max_bytes and key not in dropped and self._rounds[key] != self._newest:
                dropped.append(key)
                num_bytes -= result.encoded.nbytes
        return dropped

    def forget(self, key: Digest, *, may_reuse: bool) -> None:
        """Drop a result; `may_reuse` says that nothing reads its bytes any more."""
        result = self._results.pop(key, None)
        self._rounds.pop(key, None)
        if result is not None and may_reuse and not any(other.encoded is result.encoded for other in self._results.values()):
            self._spare = result.encoded

    def find(self, digest: Digest) -> EncodedResult | None:
        return next((result for result in self._results.values() if result.digest == digest), None)


async def serve_repair(
    stream: FramedStream, hello: Hello, store: ResultStore, *, pace: Pacing | None, idle_seconds: float
) -> None:
    """Be a donor until the fetcher closes or is idle. Raises StreamLost, RemoteProtocolError or TimeoutError."""
    result = store.find(hello.key)
    if result is None:
        # Who can name the digest has it from a host; joiners that had no part in the average need it too.
        stream.send(FrameKind.HELLO_REPLY, refusal("no such result here").encode())
        await stream.flushed()
        return
    stream.send(FrameKind.HELLO_REPLY, GO.encode())
    stream.send(FrameKind.TABLE, encode_table(list(result.parts)))
    while True:
        async with asyncio.timeout(idle_seconds):
            want = await stream.receive(FrameKind.WANT)
        if len(want) != _WANT.size or _WANT.unpack(want)[0] >= len(result.parts):
            raise RemoteProtocolError(f"{stream.peer} asks for a part that does not exist")
        async with asyncio.timeout(idle_seconds):
            await stream.send_data(result.part(_WANT.unpack(want)[0]), pace)


class _Room:
    """Sink of one donor's parts, in the order in which they were asked."""

    def __init__(self) -> None:
        self.asked: deque[tuple[int, memoryview]] = deque()
        self.filled: asyncio.Queue[int] = asyncio.Queue()
        self._at = 0

    def target(self, num_bytes: int) -> memoryview:
        if not self.asked or num_bytes > len(self.asked[0][1]) - self._at:
            raise RemoteProtocolError("more bytes than were asked")
        return self.asked[0][1][self._at : self._at + num_bytes]

    def arrived(self, num_bytes: int) -> None:
        self._at += num_bytes
        if self._at == len(self.asked[0][1]):
            self.filled.put_nowait(self.asked.popleft()[0])
            self._at = 0


class _Assembly:
    """The result as donors of one table cut it, as far as it is here."""

    def __init__(self, parts: Table, codec: TensorCodec) -> None:
        self.parts = parts
        self.codec = codec
        self.offsets = [0, *accumulate(num_bytes for num_bytes, _ in parts)]
        self.encoded = np.empty(self.offsets[-1], dtype=np.uint8)  # memory that nobody fills costs nothing
        self.wanted = deque(range(len(parts)))
        self.num_missing = len(parts)

    def view(self, index: int) -> memoryview:
        return self.encoded.data[self.offsets[index] : self.offsets[index + 1]]


class Fetch:
    """One result on its way from its donors. `run` may be called again: what has come is kept."""

    def __init__(self, digest: Digest, *, codec: TensorCodec, size: int, stall_seconds: float) -> None:
        self.bytes_sent = self.bytes_received = 0
        self._digest, self._codec, self._size, self._stall_seconds = digest, codec, size, stall_seconds
        self._assemblies: dict[Table, _Assembly] = {}

    async def run(self, donors: tuple[PeerId, ...], connect: Callable[[PeerId], Awaitable[FramedStream]]) -> EncodedResult:
        """Until every part is here. Raises AveragingError when no donor is left; the caller bounds the time."""
        waiting = list(donors)
        working: dict[asyncio.Task[None], PeerId] = {}
        failures: dict[PeerId, str] = {}
        try:
            while (whole := self._whole) is None:
                while waiting and len(working) < _MAX_DONORS:
                    donor = waiting.pop(0)
                    working[asyncio.create_task(self._fetch_from(donor, connect))] = donor
                if not working:
                    why = "; ".join(failures.values()) or "no donor was named"
                    raise AveragingError(f"the result could not be fetched: {why}", suspects=tuple(failures))
                done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    donor, error = working.pop(task), task.exception()
                    if isinstance(error, (StreamLost, RemoteProtocolError, TimeoutError)):
                        failures[donor] = str(error) or f"{donor} was silent for {self._stall_seconds:g} s"
                    elif error is not None:
                        raise error
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
        return EncodedResult(
            digest=self._digest,
            codec=whole.codec,
            sent_codec=self._codec,
            size=self._size,
            encoded=whole.encoded,
            parts=whole.parts,
        )

    @property
    def _whole(self) -> _Assembly | None:
        return next((assembly for assembly in self._assemblies.values() if not assembly.num_missing), None)

    async def _fetch_from(self, donor: PeerId, connect: Callable[[PeerId], Awaitable[FramedStream]]) -> None:
        """Take parts from the common queue until none is missing; what this donor owes at its end goes back."""
        stream = await connect(donor)
        room = _Room()
        outstanding: set[int] = set()
        assembly: _Assembly | None = None
        try:
            assembly = await self._introduce(stream, room)
            while assembly.num_missing:
                while assembly.wanted and len(outstanding) < _OUTSTANDING:
                    index = assembly.wanted.popleft()
                    outstanding.add(index)
                    room.asked.append((index, assembly.view(index)))
                    stream.send(FrameKind.WANT, _WANT.pack(index))
                if not outstanding:  # others have the rest in hand; if they fail it comes back to the queue
                    await asyncio.sleep(0.05)
                    continue
                index = await self._filled(stream, room)
                if await asyncio.to_thread(part_digest, assembly.view(index)) != assembly.parts[index][1]:
                    raise RemoteProtocolError(f"{donor} sent a part that is not in the result")
                outstanding.remove(index)
                assembly.num_missing -= 1
        finally:
            stream.abort()
            if assembly is not None:
                assembly.wanted.extend(sorted(outstanding))
            self.bytes_sent += stream.bytes_sent
            self.bytes_received += stream.bytes_received

    async def _filled(self, stream: FramedStream, room: _Room) -> int:
        """The next part that is here whole. A slow line is no silence: raises TimeoutError where nothing at all arrives."""
        while True:
            before = stream.bytes_received
            try:
                async with asyncio.timeout(self._stall_seconds):
                    return await room.filled.get()
            except TimeoutError:
                if stream.bytes_received == before:
                    raise

    async def _introduce(self, stream: FramedStream, room: _Room) -> _Assembly:
        """Say what is wanted; take the donor's table if its hashes are the true ones."""
        stream.sink = room
        stream.max_control_bytes = _TABLE_BYTES
        hello = Hello(purpose=Purpose.REPAIR, key=self._digest, codec=self._codec.code, size=self._size)
        stream.send(FrameKind.HELLO, hello.encode())
        async with asyncio.timeout(self._stall_seconds):
            reply = HelloReply.decode(await stream.receive(FrameKind.HELLO_REPLY))
            if reply.status != "go":
                raise RemoteProtocolError(f"{stream.peer} refused: {reply.reason}")
            table = tuple(decode_table(await stream.receive(FrameKind.TABLE)))
        digests, num_bytes = [digest for _, digest in table], sum(num_bytes for num_bytes, _ in table)
        true = [c for c in mean_codecs(self._codec) if result_digest(c, self._size, digests) == self._digest]
        if not true or not num_bytes <= true[0].num_bytes(self._size) + _PART_OVERHEAD_BYTES * len(table):
            raise RemoteProtocolError(f"{stream.peer} offers another result")
        if table not in self._assemblies:
            if len(self._assemblies) >= _MAX_DONORS:
                raise RemoteProtocolError(f"{stream.peer} cuts the result as nobody else does")
            self._assemblies[table] = _Assembly(table, true[0])
        return self._assemblies[table]
