"""Re-checks: members make parts of ended averages again, so that a reducer cannot return one wrong sum to everybody.

When an average has ended here, every reducer is bound by its receipt and every contributor by its root. Each member then draws
a few parts that others reduced (`recheck_draw.py`) and fetches the contributions to them from the contributors, which keep
theirs until an average of a later round has ended in the same instance. It checks them against the roots, makes the sums again,
and compares the values. A slice of a wrong sum, with the same slice of the contributions and their proofs, is evidence.

    checker --HELLO, WANT (a part, whose)--> contributor --PROOF, DATA (the part), NOTE--> checker --WANT ...

Contributors are asked, because a reducer that lied would withhold the proof of it. The reducer is asked only for the part of a
contributor that died and stayed in the mean, which it holds. A reducer can still withhold its own contribution to its own part.
So a part that cannot be made again bans nobody, but leads to a complaint about the peer that did not show its part. The
consequences of complaints are in `core/planning/suspension.py`.
"""

import asyncio
import contextlib
import logging
import math
import secrets
import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Executor

from adloco_p2p.background import BackgroundTasks
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import Evidence
from adloco_p2p.core.model.recheck_draw import MOST_INSPECTED, drawn_parts, inspected_parts
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.handshake import Hello, Purpose
from adloco_p2p.swarm.allreduce.part_sink import PartSink
from adloco_p2p.swarm.allreduce.settled import MAX_PROOF_BYTES, PartProof, Settled, ShownPart
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind, StreamLost

logger = logging.getLogger(__name__)
_CONNECT_SECONDS = 20.0
_PART_SECONDS = 120.0
"""The time limit for a part of one contributor, which may have to end the average first."""
_ATTEMPTS_KEPT = 64
_WANT = struct.Struct("<II")
"""Index of the part, and place of the contributor."""


class Rechecks:
    """Makes parts again, and shows this peer's own parts to members that do. Belongs to one event loop."""

    def __init__(
        self,
        *,
        rate: float,
        connect: Callable[[PeerId, float], Awaitable[FramedStream]],
        on_evidence: Callable[[Evidence], None],
        is_coming: Callable[[Digest], bool],
    ) -> None:
        """For `rate` see `drawn_parts`. `is_coming` tells whether the average with this key has begun here and not ended."""
        self._rate = rate
        self._connect = connect
        self._on_evidence = on_evidence
        self._is_coming = is_coming
        self._newest_begun: dict[InstanceId, AllReduceSpec] = {}
        """The newest average that has begun here, by instance."""
        self._held: OrderedDict[Digest, Settled] = OrderedDict()
        """Averages that have ended here, by key."""
        self._sent: dict[InstanceId, Settled] = {}
        """By instance, the own contribution to the newest attempt that failed here but may have given others their result."""
        self._asked: set[tuple[Digest, PeerId]] = set()
        """The members that have asked for parts; each may do so once per attempt."""
        self._has_more = asyncio.Event()
        self.tasks = BackgroundTasks()
        """The tasks that make parts again."""

    # --- as a contributor ---

    def hold(self, settled: Settled) -> None:
        """Keep an average that has ended here, and show its own parts until a later average takes its place."""
        self._held = OrderedDict((key, old) for key, old in self._held.items() if not _is_after(settled.spec, old.spec))
        self._held[settled.spec.key] = settled
        self._sent = {
            instance: old
            for instance, old in self._sent.items()
            if instance != settled.spec.instance and not _is_after(settled.spec, old.spec)
        }
        while len(self._held) > _ATTEMPTS_KEPT:
            self._held.popitem(last=False)
        self._asked = {(key, peer) for key, peer in self._asked if self._shown(key) is not None}
        self.wake()

    def hold_sent(self, sent: Settled | None) -> None:
        """Show the own parts of an attempt that failed here, if there are any, like those of an average that ended."""
        if sent is not None:
            self._sent[sent.spec.instance] = sent
        self.wake()

    def wake(self) -> None:
        """Make members that wait for the end of an average look again."""
        self._has_more.set()
        self._has_more = asyncio.Event()

    async def asked_for(self, peer: PeerId, hello: Hello) -> Settled:
        """Return the average that a member asks about, once it has ended here. Raises RemoteProtocolError, TimeoutError."""
        async with asyncio.timeout(_PART_SECONDS):
            while hello.key not in self._held and self._is_coming(hello.key):
                await self._has_more.wait()
        settled = self._shown(hello.key)
        if settled is None or peer not in settled.spec.members or hello.spec != settled.spec.digest:
            raise RemoteProtocolError(f"{peer} asks for parts that are not here")
        return settled

    def holds(self, settled: Settled) -> bool:
        """Return whether the average is still kept: none that takes its place has ended here."""
        return self._shown(settled.spec.key) is not None

    def _shown(self, key: Digest) -> Settled | None:
        return self._held.get(key) or next((sent for sent in self._sent.values() if sent.spec.key == key), None)

    def ended(self, instance: InstanceId, round: int) -> list[Settled]:
        """Return the attempts at this average that gave results here and are still kept, the last one first."""
        held = reversed(self._held.values())
        return [one for one in held if (one.spec.instance, one.spec.round) == (instance, round)]

    async def serve(self, stream: FramedStream, hello: Hello) -> None:
        """Show another member the parts that it asks for, at most as many as it may draw. Raises StreamLost,
        RemoteProtocolError, TimeoutError."""
        settled = await self.asked_for(stream.peer, hello)
        if (hello.key, stream.peer) in self._asked:
            raise RemoteProtocolError(f"{stream.peer} asks for parts of one average again")
        self._asked.add((hello.key, stream.peer))
        stream.resume()
        drawn = most_drawn(self._rate, settled.spec.num_parts, len(settled.spec.members))
        for _ in range(min(settled.spec.num_parts, drawn + MOST_INSPECTED) * (1 + len(settled.gone))):
            async with asyncio.timeout(_PART_SECONDS):
                shown = _wanted(settled, await stream.receive(FrameKind.WANT))
                if shown is None:
                    raise RemoteProtocolError(f"{stream.peer} asks for a part that is none, or not here")
                stream.send(FrameKind.PROOF, canonical.encode(shown.proof))
                await stream.send_data(memoryview(shown.data))
                stream.send(FrameKind.NOTE)
        await stream.until_closed(_PART_SECONDS)

    # --- as a checker ---

    def note_begun(self, spec: AllReduceSpec) -> None:
        """Note that an average begins here. A contributor drops the previous one once this one has ended there."""
        newest = self._newest_begun.get(spec.instance)
        if newest is None or newest.round < spec.round:
            self._newest_begun[spec.instance] = spec
        self._newest_begun = {key: old for key, old in self._newest_begun.items() if not _is_after(spec, old)}

    def is_past(self, spec: AllReduceSpec) -> bool:
        """Return whether an average that takes the place of this one has begun here, so that contributors may have dropped
        theirs."""
        return any(_is_after(begun, spec) for begun in self._newest_begun.values())

    def begin(
        self,
        settled: Settled,
        result: Callable[[int], memoryview],
        executor: Executor,
        *,
        inspected: Collection[PeerId],
        on_not_shown: Callable[[PeerId, PeerId], None],
    ) -> None:
        """Make parts of an average again in the background, some of `inspected` reducers among them.

        `result` returns an encoded part by its index; it is called only before this returns. `on_not_shown` is called with the
        member that did not show a part, and the part's reducer, unless the member was asked so late that it may have dropped
        the part.
        """
        if self._rate <= 0:
            return
        spec = settled.spec
        others = [part.index for member in settled.receipts if member != settled.me for part in spec.shards[member]]
        secret = secrets.token_bytes(16)
        drawn = drawn_parts(secret, others, rate=self._rate, num_parts=spec.num_parts, num_members=len(spec.members))
        named = [member for member in settled.receipts if member != settled.me and spec.members[member] in inspected]
        shards = [[part.index for part in spec.shards[member]] for member in named]
        drawn = tuple(dict.fromkeys((*inspected_parts(secret, shards), *drawn)))
        if drawn:
            results = {index: bytes(result(index)) for index in drawn}
            self.tasks.begin(self._check_all(settled, results, executor, on_not_shown))

    async def _check_all(
        self,
        settled: Settled,
        results: Mapping[int, bytes],
        executor: Executor,
        on_not_shown: Callable[[PeerId, PeerId], None],
    ) -> None:
        loop, spec, accused = asyncio.get_running_loop(), settled.spec, set[int]()
        async with contextlib.AsyncExitStack() as stack:
            streams: dict[int, FramedStream] = {}
            for index, result in results.items():
                part, reducer = spec.parts[index], spec.reducer_of[index]
                if reducer in accused:
                    continue
                shown = []
                for place, contributor in enumerate(spec.contributors):
                    if settled.coefficients[place] == 0:
                        continue
                    member = reducer if contributor in settled.gone else contributor
                    is_in_time = member in streams or not self.is_past(spec)
                    try:
                        shown.append(await self._part_of(settled, place, member, part, streams, stack))
                    except (StreamLost, RemoteProtocolError, TimeoutError) as error:
                        who = f"peer={spec.members[member]} reducer={spec.members[reducer]}"
                        level = logging.WARNING if is_in_time else logging.INFO  # too late is nobody's fault
                        logger.log(level, "averaging.part_not_shown round=%d %s error=%s", spec.round, who, error)
                        if is_in_time:
                            on_not_shown(spec.members[member], spec.members[reducer])
                        return
                evidence = await loop.run_in_executor(executor, settled.wrong_sum, part, shown, result)
                if evidence is not None:
                    accused.add(reducer)
                    self._on_evidence(evidence)

    async def _part_of(
        self,
        settled: Settled,
        place: int,
        member: int,
        part: Part,
        streams: dict[int, FramedStream],
        stack: contextlib.AsyncExitStack,
    ) -> ShownPart:
        """Fetch the part of the contributor at `place` from `member`. Raises StreamLost, RemoteProtocolError, TimeoutError."""
        if member == settled.me:
            return settled.own_part(part)
        async with asyncio.timeout(_PART_SECONDS):
            if member not in streams:
                stream = streams[member] = await self._connect(settled.spec.members[member], _CONNECT_SECONDS)
                stack.callback(stream.close)
                hello = Hello(purpose=Purpose.RECHECK, key=settled.spec.key, spec=settled.spec.digest)
                stream.send(FrameKind.HELLO, hello.encode())
            return await _receive(settled, streams[member], place, part)


def _is_after(later: AllReduceSpec, spec: AllReduceSpec) -> bool:
    """Return whether `later` takes the place of `spec` in memory: it is of a later round, or, if of another instance, which may
    be a round ahead, at least two rounds later."""
    return later.round - (later.instance != spec.instance) > spec.round


def _wanted(settled: Settled, payload: bytes) -> ShownPart | None:
    """Return the part that a checker asks for; None where it is not here."""
    index, place = _WANT.unpack(payload) if len(payload) == _WANT.size else (settled.spec.num_parts, 0)
    is_known = index in settled.spec.reducer_of and place < len(settled.spec.contributors)
    return settled.part_of(place, settled.spec.parts[index]) if is_known else None


async def _receive(settled: Settled, stream: FramedStream, place: int, part: Part) -> ShownPart:
    data = bytearray(part.num_sent_bytes)
    sink = PartSink(stream.peer, (part,), room=lambda _: memoryview(data), on_part=lambda _: None, permitted=lambda: 1)
    stream.sink, stream.max_control_bytes = sink, MAX_PROOF_BYTES
    stream.send(FrameKind.WANT, _WANT.pack(part.index, place))
    proof = decode(PartProof, await stream.receive(FrameKind.PROOF), max_bytes=MAX_PROOF_BYTES)
    await stream.receive(FrameKind.NOTE)
    if not sink.is_complete:
        raise RemoteProtocolError("less than a part")
    return settled.checked(place, part, ShownPart(bytes(data), proof))


def most_drawn(rate: float, num_parts: int, num_members: int) -> int:
    """Return the most parts that one member draws."""
    return min(num_parts, 1 + math.ceil(max(1.0, rate * num_parts) / max(1, num_members - 1)))
