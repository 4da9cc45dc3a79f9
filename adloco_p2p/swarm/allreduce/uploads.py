"""The uploads of all contributors to one reducer in one attempt, stream by stream, with the parts held from earlier attempts.

In a retry a contributor sends no part before it has the list of held parts:

    member --HELLO, COMMITMENT--> reducer --HELLO_REPLY, HELD--> member --DATA (the other parts)--> reducer

HELD has a bit for each part of the reducer's shard. A part is held if its bytes, which came in an earlier attempt, hash to the
leaf to which the contributor commits itself in this one.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from adloco_p2p.core.model.quorum import Quorum, Upload, is_there, stragglers, words_of
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.held_uploads import Kept, num_first, upload_key
from adloco_p2p.swarm.allreduce.own_contribution import sent_root
from adloco_p2p.swarm.allreduce.part_sink import PartSink
from adloco_p2p.swarm.allreduce.shard_reduction import ShardReduction
from adloco_p2p.swarm.transport.held import encode_held

LOOK_SECONDS = 0.5
"""How often a reducer looks for contributors that are too slow to wait for."""


class Uploads:
    """Receives the uploads of one attempt at one reducer."""

    def __init__(self, spec: AllReduceSpec, me: int, reduction: ShardReduction, kept: Kept) -> None:
        """`kept` are the parts that earlier attempts left."""
        self._spec, self._me = spec, me
        self._reduction = reduction
        self._kept = kept
        self._contributors = frozenset(spec.contributors) - {me}
        self._held: dict[int, frozenset[int]] = {}
        """By contributor: places of the parts that it need not send; in a retry known once it has committed itself."""
        self._is_announced = {member: asyncio.Event() for member in self._contributors}
        self._sinks: dict[tuple[int, int], PartSink] = {}
        """The receivers of the streams that were opened to this reducer, by member and lane."""
        self._turns: dict[tuple[int, int], list[int]] = {}
        """By member and lane: the places on the lane of the parts that come."""
        self._begun: dict[int, float] = {}
        """By contributor: the loop time since which it can send on all lanes."""
        if not spec.is_retry:
            for member in self._contributors:
                self._announce(member, frozenset())

    @property
    def num_streams(self) -> int:
        return len(self._sinks)

    @property
    def are_complete(self) -> bool:
        """Whether every contributor has sent all its parts."""
        lanes = range(len(self._spec.lanes(self._me)))
        sinks = [self._sinks.get((member, lane)) for member in self._contributors for lane in lanes]
        return all(sink is not None and sink.is_complete for sink in sinks)

    def has_stream(self, member: int, lane: int) -> bool:
        return (member, lane) in self._sinks

    def open(self, member: int, lane: int, on_part: Callable[[Part], None]) -> PartSink:
        """Return the receiver for a stream that a member opened. A member that does not contribute sends no parts on it."""
        sink = self._sinks[member, lane] = PartSink(
            self._spec.members[member],
            () if member not in self._contributors else None,
            room=partial(self._reduction.room, member),
            on_part=on_part,
            permitted=partial(self._permitted, member, lane),
        )
        self._expect(member, lane)
        return sink

    def _permitted(self, member: int, lane: int) -> int:
        """Return how many parts of the stream may have begun by now.

        A member may have kept averaged parts of an earlier attempt that are not made again yet, at most as many leading ones as
        are held of it.
        """
        turns = self._turns[member, lane]
        num_first_held = turns[0] if turns else len(self._spec.lanes(self._me)[lane])
        return bisect_left(turns, max(self._reduction.num_reduced[lane], num_first_held) + self._spec.window)

    def _is_waiting(self, member: int, lane: int) -> bool:
        """Return whether all parts are here that the member can send on the stream before it gets an averaged part that is not
        made yet. A member that has kept averaged parts may be further ahead."""
        lane_parts, is_reduced = self._spec.lanes(self._me)[lane], self._reduction.is_reduced
        num_first_made = num_first(is_reduced[self._reduction.index_of(part)].is_set() for part in lane_parts)
        due = bisect_left(self._turns[member, lane], num_first_made + self._spec.window)
        return self._sinks[member, lane].num_arrived >= due

    def _expect(self, member: int, lane: int) -> None:
        held, sink = self._held.get(member), self._sinks.get((member, lane))
        if held is None or sink is None:
            return
        parts = self._spec.lanes(self._me)[lane]
        turns = [turn for turn, part in enumerate(parts) if self._spec.place_of[part.index] not in held]
        self._turns[member, lane] = turns
        sink.expect(tuple(parts[turn] for turn in turns))
        if all((member, other) in self._turns for other in range(len(self._spec.lanes(self._me)))):
            self._begun[member] = asyncio.get_running_loop().time()

    def of(self, member: int, now: float) -> Upload:
        """Return how far a contributor's upload is; this reducer's own counts as there."""
        weight = self._spec.weights[member][1]
        if member not in self._begun:
            return Upload(weight=weight, is_there=member == self._me)
        lanes = range(len(self._spec.lanes(self._me)))
        sinks = [self._sinks[member, lane] for lane in lanes]
        return Upload(
            weight=weight,
            is_there=all(self._is_waiting(member, lane) for lane in lanes),
            num_bytes=sum(sink.num_bytes for sink in sinks),
            rest_bytes=sum(sink.rest_bytes for sink in sinks),
            seconds=now - self._begun[member],
            is_known=self._spec.quorum is None or self._spec.members[member] not in self._spec.quorum.unmeasured,
        )

    async def first_parts(self, member: int, lane: int) -> list[Part]:
        """Return the parts that the contributor, once it has HELD, sends on the stream without waiting for averaged parts."""
        await self._is_announced[member].wait()
        parts = self._spec.lanes(self._me)[lane]
        return [parts[turn] for turn in self._turns[member, lane] if turn < self._spec.window]

    async def take_over(self, member: int, leaf: Callable[[int, Part], bytes], executor: Executor) -> tuple[bytes, list[Part]]:
        """Take over the held parts of a contributor that has committed itself; `leaf` returns the root that a part must have.
        Return HELD, and the parts to which all contributions are now here."""
        peer, parts = self._spec.members[member], self._spec.shards[self._me]

        def is_held(part: Part) -> bool:
            room = self._kept.get(upload_key(peer, part))
            try:
                return room is not None and sent_root(self._spec, part, room.data[: part.num_sent_bytes]) == leaf(member, part)
            except RemoteProtocolError:
                return False  # the bytes of the failed attempt were never checked

        def find() -> list[Part]:
            return [part for part in parts if is_held(part)]

        held = await asyncio.get_running_loop().run_in_executor(executor, find)
        whole = [part for part in held if self._reduction.adopt(member, part, self._kept.pop(upload_key(peer, part)))]
        places = frozenset(self._spec.place_of[part.index] for part in held)
        self._announce(member, places)
        return encode_held(places, len(parts)), whole

    def _announce(self, member: int, held: frozenset[int]) -> None:
        self._held[member] = held
        self._is_announced[member].set()
        for lane in range(len(self._spec.lanes(self._me))):
            self._expect(member, lane)

    def kept(self) -> Kept:
        """Return all parts that are here, for the next attempt."""
        members = self._spec.members
        arrived = {upload_key(members[member], part): room for member, part, room in self._reduction.arrived()}
        return {**self._kept, **arrived}

    def release(self) -> None:
        """Drop the held parts that were not taken over."""
        self._kept = {}

    def close(self) -> None:
        """Forget all streams, because they bring nothing any more."""
        self._sinks.clear()


class StragglerWatch:
    """Finds the stragglers because of which the reducer ends the attempt: the quorum is there, and their uploads take too long.

    It looks at the uploads again and again; see `core/model/quorum.py`."""

    def __init__(self, spec: AllReduceSpec, quorum: Quorum, uploads: Uploads, now: float) -> None:
        """All instants are in seconds."""
        self._spec, self._quorum, self._uploads = spec, quorum, uploads
        self._last = self._since = now
        """The instant of the last look, and that since which all contributors have begun."""
        self._waited_seconds = 0.0
        """The time since `_since` during which the quorum was there."""

    def look(self, now: float) -> dict[int, str]:
        """Return the stragglers, each with the reason; empty while the attempt goes on."""
        uploads = [self._uploads.of(member, now) for member in self._spec.contributors]
        passed, self._last = now - self._last, now
        if passed > 4 * LOOK_SECONDS:  # this process did not run, so arrived bytes may wait to be read
            return {}
        if not all(upload.is_there or upload.seconds for upload in uploads):
            self._since, self._waited_seconds = now, 0.0
            return {}
        if is_there(self._quorum, uploads):
            self._waited_seconds += passed
        found = stragglers(self._quorum, uploads, waiting=self._waiting(uploads, now))
        return {
            self._spec.contributors[place]: words_of(uploads[place], self._quorum, round=self._spec.round) for place in found
        }

    def _waiting(self, uploads: list[Upload], now: float) -> float:
        if all(upload.rest_bytes == 0 for upload in uploads if upload.is_there):
            return 1.0
        return min(1.0, self._waited_seconds / max(now - self._since, LOOK_SECONDS))
