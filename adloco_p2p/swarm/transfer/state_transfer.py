"""State of an instance from peer to peer: chunks of a hash tree, from several donors at once, every chunk verified.

The root is known from the agreed plan, so donors need not be trusted: the leaves must hash to the root, and a chunk to its
leaf. A donor serves from a snapshot that the runtime lends it and that nobody writes to; its training does not wait.

On a binary stream (several times faster than hivemind's protobuf streams, and with limits of our own on every length):

  joiner -> donor   length (4 bytes), StateRequest
  donor -> joiner   length (4 bytes), StateHeader; unless refused, the leaves, 32 bytes each
  joiner -> donor   index of a chunk (4 bytes), again and again, MAX_IN_FLIGHT ahead
  donor -> joiner   the chunks, in the order in which they were asked for

Integers are big-endian. Either side closes the stream when it is done; a side that is silent for too long is left.
"""

import asyncio
import contextlib
import hashlib
import logging
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from google.protobuf.message import DecodeError, Message
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

from adloco_p2p.config.run_config import PROTOCOL_VERSION
from adloco_p2p.core.model.types import Digest, InstanceId, PeerId
from adloco_p2p.errors import RemoteProtocolError, StateTransferFailed
from adloco_p2p.numerics.digest import state_chunks, state_leaves, state_root
from adloco_p2p.swarm.transport.framed_stream import Pacing
from adloco_p2p.swarm.transport.traffic import Meter
from adloco_p2p.v1 import gossip_pb2

PROTOCOL_NAME = "adloco/state/1"
MAX_DOWNLOADS = 4
"""Joiners that one donor serves at the same time; further ones are told to come back. Members come first: the oldest download
of a peer without a seat ends where a member wants its place."""
MAX_REQUESTS = 16
MAX_REQUESTS_PER_PEER = 2
"""Streams of peers without a seat, and of one peer, that have not sent their request yet."""
REQUEST_SECONDS = 10.0
"""A stream that has not sent its request after so long is dropped."""
LEAST_BYTES_PER_SECOND = 8 * 1024
"""A download that is slower for the whole time that the donor waited for its joiner, ..."""
LEAST_AFTER_SECONDS = 60.0
"""... from so long on, is dropped, and so is one that takes the whole state more often than MAX_COPIES."""
MAX_COPIES = 2
MAX_OFFERED_ROUNDS = 2
"""Of one instance: the newest ones."""
MAX_HEADER_BYTES = 4096
MAX_IN_FLIGHT = 4
"""Chunks that are asked for ahead of the one being received."""
SLICE_BYTES = 128 * 1024
"""What is written at once."""
SILENCE_SECONDS = 20.0
"""A donor that does not deliver SLICE_BYTES in this time (6.5 kB/s) is dropped."""
IDLE_TIMEOUT_SECONDS = 30.0
"""A joiner that neither asks nor reads for so long is dropped."""
MAX_ATTEMPTS = 3
"""In a row, with a donor whose connection breaks before a single chunk came."""
HELP_AFTER_SECONDS = 1.0
"""A chunk that a donor owes for so long is also asked of one that has nothing else to do."""
PAUSE_SECONDS = 0.5
"""Before a busy or lost donor is asked again."""

_STREAM_ERRORS = (TimeoutError, P2PDaemonError, OSError, asyncio.IncompleteReadError, DecodeError)
AnyMessage = TypeVar("AnyMessage", bound=Message)
_log = logging.getLogger(__name__)


class _Busy(Exception):
    """The donor serves as many joiners as it wants to: come back later."""


class _Offer:
    """A snapshot that is lent to us. Its leaves are computed when the first joiner asks."""

    def __init__(self, root: Digest, outer: torch.Tensor, momentum: torch.Tensor) -> None:
        self.root = root
        self.chunks = tuple(chunk.toreadonly() for chunk in state_chunks(outer, momentum))
        self.num_bytes = sum(len(chunk) for chunk in self.chunks)
        self._tensors = (outer, momentum)
        self._leaves: bytes | None = None
        self._hashing = asyncio.Lock()

    async def leaves(self) -> bytes | None:
        """32 bytes per chunk; none where they do not hash to the root."""
        async with self._hashing:
            if self._leaves is None:
                leaves = await asyncio.to_thread(state_leaves, *self._tensors)
                self._leaves = bytes.fromhex("".join(leaves)) if state_root(leaves) == self.root else b""
        return self._leaves or None


class _Allowance:
    """What one download may take: bytes, and seconds in which the donor waits for the joiner. Its own cap is not counted."""

    def __init__(self, num_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bytes_left = MAX_COPIES * num_bytes
        self._num_bytes = 0
        self._waited_seconds = 0.0

    def take(self, num_bytes: int) -> None:
        """Raises RemoteProtocolError where the joiner asks for more than it can need."""
        self._bytes_left -= num_bytes
        self._num_bytes += num_bytes
        if self._bytes_left < 0:
            raise RemoteProtocolError(f"asked for more than {MAX_COPIES} times the state")

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """While the joiner has to do something. Raises TimeoutError where it is silent, or slow all in all."""
        begun = self._clock()
        async with asyncio.timeout(IDLE_TIMEOUT_SECONDS):
            yield
        self._waited_seconds += self._clock() - begun
        if self._waited_seconds > max(LEAST_AFTER_SECONDS, self._num_bytes / LEAST_BYTES_PER_SECOND):
            raise TimeoutError(f"{self._num_bytes} bytes in {self._waited_seconds:.0f} s")


@dataclass(eq=False, slots=True)
class _Place:
    """One of the downloads that run."""

    is_stranger: bool
    writer: asyncio.StreamWriter


class StateServer:
    """The donor's side. Serves what was offered last."""

    def __init__(
        self,
        p2p: P2P,
        *,
        run: Digest,
        pace: Pacing | None = None,
        meter: Meter | None = None,
        members: Callable[[], Collection[PeerId]] = frozenset,
    ) -> None:
        """`pace` says when a slice may be sent. `members`: who has a seat now and comes first; all are alike where this peer
        has none itself."""
        self._p2p = p2p
        self._run = run
        self._pace = pace
        self._meter = meter or Meter()
        self._offers: dict[InstanceId, dict[int, _Offer]] = {}
        self._retired: dict[InstanceId, int] = {}
        """Instances that this peer hosts no longer -> the newest boundary offered when it ceased to."""
        self._me = PeerId(str(p2p.peer_id))
        self._members = members
        self._requests: Counter[PeerId] = Counter()
        """Streams whose request has not come yet."""
        self._places: dict[PeerId, _Place] = {}
        """Downloads that run, oldest first."""
        self.on_served: Callable[[InstanceId, int], None] = lambda _instance, _round: None
        """Called when a peer has taken the whole state of an instance at the boundary before a round, and gone."""

    async def start(self) -> None:
        await self._p2p.add_binary_stream_handler(PROTOCOL_NAME, self._serve)

    async def stop(self) -> None:
        """New joiners are turned away; downloads that run end with the daemon."""
        if not self._p2p.is_alive:
            return
        with contextlib.suppress(*_STREAM_ERRORS):
            async with asyncio.timeout(SILENCE_SECONDS):
                await self._p2p.remove_binary_stream_handler(PROTOCOL_NAME)

    def offer(self, instance: InstanceId, round: int, root: Digest, outer: torch.Tensor, momentum: torch.Tensor) -> None:
        """Serve the instance's state at the boundary before `round`, both flat fp32 [P] on the CPU.

        The tensors are kept by reference and must not be written to while they are offered: until two later rounds of the
        instance were offered, or `withdraw`, and until the downloads that then run have ended. Costs nothing until asked for.
        """
        offers = self._offers.setdefault(instance, {})
        offers.pop(round, None)
        offers[round] = _Offer(root, outer, momentum)
        for older in list(offers)[:-MAX_OFFERED_ROUNDS]:  # by age: after a change of history rounds begin lower again
            del offers[older]
        self._retired.pop(instance, None)
        for retired in [retired for retired, since in self._retired.items() if round >= since + MAX_OFFERED_ROUNDS]:
            self.withdraw(retired)

    def retire(self, instance: InstanceId) -> None:
        """No more states of this instance will come. What is there is served until the boundaries that are offered of others
        are two rounds further: hosts that are a little behind may still need it."""
        if instance in self._offers:
            self._retired[instance] = max(max(offers) for offers in self._offers.values())

    def withdraw(self, instance: InstanceId) -> None:
        """Serve this instance no longer. Downloads that run keep their snapshot to the end."""
        self._offers.pop(instance, None)
        self._retired.pop(instance, None)

    async def _serve(self, stream: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        joiner = PeerId(str(stream.peer_id))
        try:
            request = await self._request(joiner, reader)
            offer, refusal = self._find(request)
            if offer is None:
                _send(gossip_pb2.StateHeader(refusal=refusal), writer)
            elif (place := self._take_place(joiner, writer)) is None:
                _send(gossip_pb2.StateHeader(refusal=f"busy with {len(self._places)} downloads", is_busy=True), writer)
            else:
                served: set[int] = set()
                try:
                    await self._serve_chunks(offer, served, reader, writer)
                finally:
                    if self._places.get(joiner) is place:
                        del self._places[joiner]
                    if len(served) == len(offer.chunks):
                        self.on_served(InstanceId(request.instance), request.round)
        except (RemoteProtocolError, *_STREAM_ERRORS) as error:
            _log.debug("download by %s ended: %r", joiner, error)
        finally:
            writer.close()

    async def _request(self, joiner: PeerId, reader: asyncio.StreamReader) -> gossip_pb2.StateRequest:
        """What the joiner wants. Raises RemoteProtocolError where too many streams have not sent that yet."""
        num_strangers = sum(count for peer, count in self._requests.items() if self._is_stranger(peer))
        is_full = self._is_stranger(joiner) and num_strangers >= MAX_REQUESTS
        if is_full or self._requests[joiner] >= MAX_REQUESTS_PER_PEER:
            raise RemoteProtocolError("too many streams without a request")
        self._requests[joiner] += 1
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                return await _receive(gossip_pb2.StateRequest, reader)
        finally:
            self._requests[joiner] -= 1
            if not self._requests[joiner]:
                del self._requests[joiner]

    def _is_stranger(self, peer: PeerId) -> bool:
        members = self._members()
        return self._me in members and peer not in members

    def _take_place(self, joiner: PeerId, writer: asyncio.StreamWriter) -> _Place | None:
        """A place for a download, if need be that of a stranger; none where all are taken by those who come first."""
        is_stranger = self._is_stranger(joiner)
        if joiner in self._places:
            return None
        if len(self._places) >= MAX_DOWNLOADS:
            yielding = next((peer for peer, place in self._places.items() if place.is_stranger), None)
            if is_stranger or yielding is None:
                return None
            self._places.pop(yielding).writer.transport.abort()
        place = self._places[joiner] = _Place(is_stranger, writer)
        return place

    def _find(self, request: gossip_pb2.StateRequest) -> tuple[_Offer | None, str]:
        """What is asked for, or why it is not served."""
        if request.protocol_version != PROTOCOL_VERSION:
            return None, f"protocol version {PROTOCOL_VERSION} is spoken here"
        if request.run.hex() != self._run:
            return None, f"this peer takes part in run {self._run}"
        offer = self._offers.get(InstanceId(request.instance), {}).get(request.round)
        if offer is None or bytes.fromhex(offer.root) != request.root:
            return None, "this state is not held here"
        return offer, ""

    async def _serve_chunks(
        self, offer: _Offer, served: set[int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Until the joiner ends the stream; puts the chunks that went out into `served`."""
        leaves = await offer.leaves()
        if leaves is None:
            _log.error("the offered state does not hash to its root %s: it was written to, or offered wrongly", offer.root)
            _send(gossip_pb2.StateHeader(refusal="this state is not held here any more"), writer)
            return
        _send(gossip_pb2.StateHeader(num_bytes=offer.num_bytes, num_leaves=len(offer.chunks)), writer)
        writer.write(leaves)
        self._meter.sent_bytes += len(leaves)
        allowance = _Allowance(offer.num_bytes)
        while True:
            async with allowance.waiting():
                await writer.drain()
                (index,) = struct.unpack(">I", await reader.readexactly(4))
            if index >= len(offer.chunks):
                raise RemoteProtocolError(f"chunk {index} asked for, there are {len(offer.chunks)}")
            chunk = offer.chunks[index]
            allowance.take(len(chunk))
            for start in range(0, len(chunk), SLICE_BYTES):
                part = chunk[start : start + SLICE_BYTES]
                if self._pace is not None:
                    await self._pace.sending(len(part))
                writer.write(part)
                self._meter.sent_bytes += len(part)
                async with allowance.waiting():
                    await writer.drain()
            served.add(index)


class StateFetcher:
    """The joiner's side."""

    def __init__(
        self,
        p2p: P2P,
        *,
        run: Digest,
        silence_seconds: float = SILENCE_SECONDS,
        pace: Pacing | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._p2p = p2p
        self._run = run
        self._silence_seconds = silence_seconds
        self._pace = pace
        self._meter = meter or Meter()

    async def fetch(
        self,
        instance: InstanceId,
        round: int,
        root: Digest,
        donors: Sequence[PeerId],
        *,
        outer: torch.Tensor,
        momentum: torch.Tensor,
        timeout_seconds: float,
    ) -> None:
        """Fill `outer` and `momentum` (flat fp32 [P], CPU) with the state at the boundary before `round`.

        Returns when every chunk is verified. Chunks that are right already are not asked for: after a failure, call again
        with the same tensors and perhaps other donors. A donor that is silent, slow, refuses or lies is dropped; what it was
        asked for the others deliver. Raises StateTransferFailed with the reasons when no donor is left or time is up; then
        the tensors hold anything.
        """
        wanted = gossip_pb2.StateRequest(
            protocol_version=PROTOCOL_VERSION,
            run=bytes.fromhex(self._run),
            instance=instance,
            round=round,
            root=bytes.fromhex(root),
        )
        download = _Download(root=root, chunks=state_chunks(outer, momentum))
        problems: dict[PeerId, str] = {}
        deadline = time.monotonic() + timeout_seconds

        async def use(donor: PeerId) -> None:
            attempts = 0
            while not download.is_complete and attempts < MAX_ATTEMPTS:
                num_before = download.num_delivered(donor)
                try:
                    await self._fetch_from(donor, wanted, download)
                except _Busy as busy:
                    problems[donor] = str(busy)
                except RemoteProtocolError as error:
                    problems[donor] = str(error)
                    break
                except _STREAM_ERRORS as error:
                    problems[donor] = str(error) or ("silent" if isinstance(error, TimeoutError) else "the connection broke")
                    attempts = 1 if download.num_delivered(donor) > num_before else attempts + 1
                await asyncio.sleep(PAUSE_SECONDS)
            if not download.is_complete:
                _log.info("state donor %s dropped: %s", donor, problems[donor])

        tasks = {asyncio.create_task(use(donor)) for donor in dict.fromkeys(donors)}
        finished = asyncio.create_task(download.completed.wait())
        try:
            while tasks and not download.is_complete and time.monotonic() < deadline:
                done, _ = await asyncio.wait(
                    {finished, *tasks}, timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done & tasks:
                    task.result()  # a bug, if anything
                tasks -= done
        finally:
            for task in (finished, *tasks):
                task.cancel()
            await asyncio.gather(finished, *tasks, return_exceptions=True)
        if not download.is_complete:
            lines = [f"  {donor}: {problems.get(donor, 'too slow')}" for donor in donors] or ["  nobody is known to hold it"]
            raise StateTransferFailed(
                f"state of instance {instance} before round {round}: {download.num_verified} of {len(download.chunks)} chunks "
                "came, no donor for the rest:\n" + "\n".join(lines)
            )

    async def _fetch_from(self, donor: PeerId, wanted: gossip_pb2.StateRequest, download: "_Download") -> None:
        """Take chunks from one donor until all are there. Raises _Busy, RemoteProtocolError, or what the stream raises."""
        async with asyncio.timeout(self._silence_seconds):
            _, reader, writer = await self._p2p.call_binary_stream_handler(PeerID.from_base58(donor), PROTOCOL_NAME)
        try:
            _send(wanted, writer)
            async with asyncio.timeout(self._silence_seconds):
                header = await _receive(gossip_pb2.StateHeader, reader)
                if header.refusal:
                    raise (_Busy if header.is_busy else RemoteProtocolError)(header.refusal[:300])
                if header.num_bytes != download.num_bytes or header.num_leaves != len(download.chunks):
                    raise RemoteProtocolError(f"offers {header.num_bytes} bytes, the state has {download.num_bytes}")
                leaves = await reader.readexactly(32 * header.num_leaves)
            self._meter.received_bytes += len(leaves)
            await download.set_leaves(leaves)
            await self._exchange(donor, download, reader, writer)
        finally:
            writer.close()

    async def _exchange(
        self, donor: PeerId, download: "_Download", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        asked: list[int] = []
        try:
            while not download.is_complete:
                while len(asked) < MAX_IN_FLIGHT and (index := download.take(donor, is_idle=not asked)) is not None:
                    asked.append(index)
                    writer.write(struct.pack(">I", index))
                if not asked:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(HELP_AFTER_SECONDS):
                            await download.wait_for_news()
                    continue
                chunk = await self._receive_chunk(len(download.chunks[asked[0]]), reader)
                if not download.put(donor, asked[0], chunk):
                    raise RemoteProtocolError(f"chunk {asked[0]} is not what the plan's root promises")
                del asked[0]
        finally:
            download.give_back(donor)

    async def _receive_chunk(self, size: int, reader: asyncio.StreamReader) -> bytes:
        parts = []
        for start in range(0, size, SLICE_BYTES):
            async with asyncio.timeout(self._silence_seconds):
                parts.append(await reader.readexactly(min(SLICE_BYTES, size - start)))
            self._meter.received_bytes += len(parts[-1])
            if self._pace is not None:
                await asyncio.sleep(self._pace.received(len(parts[-1])))
        return b"".join(parts)


class _Download:
    """Which chunks are there, which are asked of whom."""

    def __init__(self, *, root: Digest, chunks: Sequence[memoryview], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.chunks = chunks
        self.num_bytes = sum(len(chunk) for chunk in chunks)
        self.completed = asyncio.Event()
        self._root = root
        self._leaves: tuple[bytes, ...] | None = None
        self._missing = set(range(len(chunks)))
        self._free = dict.fromkeys(range(len(chunks)))
        """Missing, and asked of nobody; in order."""
        self._asked: dict[int, dict[PeerId, float]] = {}
        """Missing, and asked of whom, since when."""
        self._delivered: Counter[PeerId] = Counter()
        self._news = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        return self.completed.is_set()

    @property
    def num_verified(self) -> int:
        return len(self.chunks) - len(self._missing)

    def num_delivered(self, donor: PeerId) -> int:
        return self._delivered[donor]

    async def set_leaves(self, raw: bytes) -> None:
        """Leaves as some donor tells them. The first true ones are kept, and the chunks that are right already are found.
        Raises RemoteProtocolError if they do not hash to the root."""
        if hashlib.sha256(raw).hexdigest() != self._root:
            raise RemoteProtocolError("its leaves do not hash to the plan's root")
        if self._leaves is not None:
            return
        self._leaves = leaves = tuple(raw[start : start + 32] for start in range(0, len(raw), 32))
        right = await asyncio.to_thread(
            lambda: [index for index, chunk in enumerate(self.chunks) if hashlib.sha256(chunk).digest() == leaves[index]]
        )
        for index in right:
            self._verified(index)

    def take(self, donor: PeerId, *, is_idle: bool) -> int | None:
        """The next chunk to ask this donor for: one that nobody was asked for. When there are none left, an idle donor is given
        one that a single other one owes for long, so that the slowest does not decide when the download ends."""
        now = self._clock()
        index = next(iter(self._free), None)
        if index is not None:
            del self._free[index]
        elif is_idle:
            index = next((i for i, since in self._asked.items() if donor not in since and _is_overdue(since, now)), None)
        if index is not None:
            self._asked.setdefault(index, {})[donor] = now
        return index

    def put(self, donor: PeerId, index: int, chunk: bytes) -> bool:
        """Keep the chunk if it is the right one."""
        assert self._leaves is not None
        if hashlib.sha256(chunk).digest() != self._leaves[index]:
            return False
        self._delivered[donor] += 1
        if index in self._missing:
            self.chunks[index][:] = chunk
            self._verified(index)
        return True

    def give_back(self, donor: PeerId) -> None:
        """The donor will not deliver what it was asked for."""
        for index, donors in list(self._asked.items()):
            if donor in donors:
                del donors[donor]
                if not donors:
                    del self._asked[index]
                    self._free[index] = None
        self._news.set()

    async def wait_for_news(self) -> None:
        """Until something may be taken that could not before, or all is there."""
        self._news.clear()
        await self._news.wait()

    def _verified(self, index: int) -> None:
        self._missing.discard(index)
        self._free.pop(index, None)
        self._asked.pop(index, None)
        if not self._missing:
            self.completed.set()
            self._news.set()


def _is_overdue(asked_since: dict[PeerId, float], now: float) -> bool:
    """Owed by one donor, and for long."""
    return len(asked_since) == 1 and now - min(asked_since.values()) >= HELP_AFTER_SECONDS


def _send(message: Message, writer: asyncio.StreamWriter) -> None:
    data = message.SerializeToString()
    assert len(data) <= MAX_HEADER_BYTES
    writer.write(struct.pack(">I", len(data)) + data)


async def _receive(kind: type[AnyMessage], reader: asyncio.StreamReader) -> AnyMessage:
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    if size > MAX_HEADER_BYTES:
        raise RemoteProtocolError(f"a message of {size} bytes, at most {MAX_HEADER_BYTES} accepted")
    return kind.FromString(await reader.readexactly(size))
