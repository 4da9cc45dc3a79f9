"""The attempts of one peer by key: those in progress, those that have ended, and failures reported of those to come."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec
from adloco_p2p.swarm.allreduce.early_messages import keep_bounded
from adloco_p2p.swarm.allreduce.handshake import Hello, HelloReply, refusal
from adloco_p2p.swarm.allreduce.topology import Attempt
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind, StreamLost

_ENDED_KEYS = 256
_EARLY_NOTES = 256
"""Failures of averages not begun here that are kept of all reporters."""


@dataclass(frozen=True, slots=True)
class _End:
    """The end of an attempt, whose key is never used again."""

    spec: bytes
    reply: HelloReply
    """The answer to members that come too late."""


class AttemptRegister:
    """Hands streams and notes of other members to the attempts they are about. Belongs to one event loop."""

    def __init__(self, *, max_waiting: int) -> None:
        """`max_waiting`: for how many averages not begun here the streams, or the notes, of one other peer may wait."""
        self.running: dict[Digest, Attempt] = {}
        """Attempts that are in progress or still serve slower members."""
        self.begun = asyncio.Event()
        """Set, and then replaced, when an average begins; streams of remote members may wait for it."""
        self._ended: OrderedDict[Digest, _End] = OrderedDict()
        self.early_notes: OrderedDict[tuple[Digest, PeerId], _End] = OrderedDict()
        """Reported failures of averages that this peer has not begun, by key and reporter."""
        self._max_waiting = max_waiting
        self._waiting: dict[PeerId, dict[tuple[Digest, int], FramedStream]] = {}
        """Streams for averages that this peer has not begun, by peer, key and lane, in the order of arrival."""

    def is_used(self, key: Digest) -> bool:
        return key in self.running or key in self._ended

    def is_coming(self, key: Digest) -> bool:
        """Whether the attempt with this key has begun here and not ended."""
        return key in self.running and key not in self._ended

    def is_average_coming(self, round: int, instance: InstanceId) -> bool:
        """Whether an attempt at this average has begun here and not ended."""
        specs = [attempt.spec for attempt in self.running.values()]
        return any(self.is_coming(spec.key) for spec in specs if (spec.round, spec.instance) == (round, instance))

    def begin(self, attempt: Attempt) -> None:
        """Register an attempt: admit the streams that wait for it, and pass on failures that were reported before."""
        key = attempt.spec.key
        self.running[key] = attempt
        for early_key, reporter in tuple(self.early_notes):
            if early_key == key:
                note = self.early_notes.pop((early_key, reporter))
                attempt.on_remote_failure(reporter, note.spec, note.reply)
        self.wake()

    def wake(self) -> None:
        """Make waiting streams look again."""
        self.begun.set()
        self.begun = asyncio.Event()

    def end(self, spec: AllReduceSpec, reply: HelloReply) -> None:
        """Mark the attempt as ended; slower members may still be served."""
        self._ended[spec.key] = _End(spec.digest, reply)
        while len(self._ended) > _ENDED_KEYS:
            self._ended.popitem(last=False)

    def forget(self, attempt: Attempt) -> None:
        """Forget an attempt that serves no member any more."""
        del self.running[attempt.spec.key]

    async def serve(self, stream: FramedStream, hello: Hello, *, patience_seconds: float, look_seconds: float) -> bool:
        """Hand a stream to its attempt, after waiting for the attempt to begin here. Return whether another hello may follow.

        Raises StreamLost; RemoteProtocolError for a stream that gives way to newer ones of its peer.
        """
        if not self.is_used(hello.key):
            await self._wait(stream, hello, patience_seconds=patience_seconds, look_seconds=look_seconds)
        attempt, ended = self.running.get(hello.key), self._ended.get(hello.key)
        if ended and (attempt is None or ended.reply.status == "failed"):
            answer = ended.reply if ended.spec == hello.spec else refusal("the members do not agree")
            stream.send(FrameKind.HELLO_REPLY, answer.encode())
            return False
        assert attempt is not None
        return await attempt.serve(stream, hello)

    async def _wait(self, stream: FramedStream, hello: Hello, *, patience_seconds: float, look_seconds: float) -> None:
        """Wait until the average has begun here or was given up."""
        give_up = asyncio.get_running_loop().time() + patience_seconds
        with self._place_to_wait(stream, hello) as has_place:
            while not self.is_used(hello.key):
                if stream.is_lost or asyncio.get_running_loop().time() > give_up:
                    raise StreamLost(f"{stream.peer} waited too long for this peer to begin")
                if not has_place():
                    raise RemoteProtocolError("a stream gave way to others that wait for averages not begun here")
                try:
                    await asyncio.wait_for(self.begun.wait(), look_seconds)
                except TimeoutError:
                    stream.show_life((), quiet_seconds=0.0)

    @contextlib.contextmanager
    def _place_to_wait(self, stream: FramedStream, hello: Hello) -> Iterator[Callable[[], bool]]:
        """Give the stream a place to wait; yield a function that tells whether it still has it.

        A key is a digest, and the key of a plan or retry not known here yet looks like any other. So the newest keys of a peer
        have places, as many as it may take part in at a time.
        """
        places, own = self._waiting.setdefault(stream.peer, {}), (hello.key, hello.lane)
        places.pop(own, None)
        places[own] = stream
        keys = list(dict.fromkeys(key for key, _ in places))
        for place in [place for place in places if place[0] in keys[: -self._max_waiting]]:
            del places[place]

        def has_place() -> bool:
            return places.get(own) is stream

        try:
            yield has_place
        finally:
            if has_place():
                del places[own]
                if not places:
                    del self._waiting[stream.peer]

    def hear_note(self, peer: PeerId, hello: Hello, reply: HelloReply, *, is_stranger: bool) -> None:
        """Handle another peer's report that an average has failed. Raises RemoteProtocolError."""
        if reply.status != "failed":
            raise RemoteProtocolError(f"{peer} sent a note that is none")
        if hello.key in self.running:
            self.running[hello.key].on_remote_failure(peer, hello.spec, reply)
        elif hello.key not in self._ended and not is_stranger:
            note = _End(hello.spec, reply)
            keep_bounded(self.early_notes, (hello.key, peer), note, per_reporter=self._max_waiting, in_all=_EARLY_NOTES)
