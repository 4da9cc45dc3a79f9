"""Whole contributions to ended averages, shown to the assessors that are drawn to score them (`core/model/assessments.py`).

    assessor --HELLO--> subject --PROOF (the roots of all parts), DATA (all parts)--> assessor (closes)

The subject shows the contribution that it keeps for re-checks (`recheck.py`) until an average of a later round has ended. It
shows it only to the assessors that its own core names, once to each, and again only if the stream was lost. It begins when its
average has ended, so that most of the bytes travel while the hosts train. An assessor checks the roots of all parts against the
contribution's signed root, and every part against its own root.

A contribution that is not shown in time is the subject's fault unless this peer may be the cause: its own daemon does not
answer, or the next average began too soon for a subject that was still sending, at the speed of the links in the last average.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Executor

import torch

from adloco_p2p.core.model.assessments import ASSESSORS
from adloco_p2p.core.model.hash_tree import tree_root
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.errors import AveragingError, ContributionNotShown, RemoteProtocolError
from adloco_p2p.numerics.codecs import fits
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.handshake import Hello, Purpose
from adloco_p2p.swarm.allreduce.own_contribution import root_of, sent_root
from adloco_p2p.swarm.allreduce.part_sink import PartSink
from adloco_p2p.swarm.allreduce.recheck import Rechecks
from adloco_p2p.swarm.allreduce.settled import Settled
from adloco_p2p.swarm.transport.framed_stream import CONTROL_BYTES, FramedStream, FrameKind, StreamLost

_CONNECT_SECONDS = 20.0
_PART_SECONDS = 120.0
"""The time limit for one part; before the first, the subject may have to end its average and its outer step."""
_TRIES = 2
"""How often an assessor may ask; it asks again only if the stream was lost."""
_PAUSE_SECONDS = 0.5
"""The pause before an assessor asks again."""
_PATIENCE = 2 * ASSESSORS
"""The time limit for a contribution, in durations of the average, which carried about as many bytes: the subject sends to all
assessors at the same time, and half the rate is still in time."""
_ROUNDS_KEPT = 8
"""The number of averages whose assessors are remembered."""
_ROOT_BYTES = hashlib.sha256().digest_size


class ShownContributions:
    """Shows this peer's contributions to their assessors, and fetches those of others. Belongs to one event loop."""

    def __init__(
        self,
        rechecks: Rechecks,
        *,
        connect: Callable[[PeerId, float], Awaitable[FramedStream]],
        local_fault: Callable[[], Awaitable[str | None]],
    ) -> None:
        """For `local_fault` see `Context`."""
        self._rechecks = rechecks
        self._connect = connect
        self._local_fault = local_fault
        self._assessors: OrderedDict[tuple[InstanceId, int], dict[PeerId, int]] = OrderedDict()
        """By instance and round of this peer's contributions: how often each assessor may still ask."""
        self._has_more = asyncio.Event()

    # --- as the subject ---

    def show(self, instance: InstanceId, round: int, assessors: Collection[PeerId]) -> None:
        """Name the assessors of this peer's contribution to one average."""
        self._assessors[instance, round] = dict.fromkeys(assessors, _TRIES)
        while len(self._assessors) > _ROUNDS_KEPT:
            self._assessors.popitem(last=False)
        self._has_more.set()
        self._has_more = asyncio.Event()

    async def serve(self, stream: FramedStream, hello: Hello) -> None:
        """Show the own contribution to an assessor. Raises StreamLost, RemoteProtocolError, TimeoutError."""
        settled = await self._rechecks.asked_for(stream.peer, hello)
        if not settled.own:
            raise RemoteProtocolError(f"{stream.peer} asks for a contribution that is not here")
        of = (settled.spec.instance, settled.spec.round)
        async with asyncio.timeout(_PART_SECONDS):
            while of not in self._assessors:
                await self._has_more.wait()
        tries = self._assessors[of]
        if tries.get(stream.peer, 0) == 0:
            raise RemoteProtocolError(f"{stream.peer} is not to look at this contribution, or has asked for it before")
        tries[stream.peer] -= 1
        stream.resume()
        stream.send(FrameKind.PROOF, b"".join(root for shard in settled.own_leaves for root in shard))
        for part in settled.spec.parts:
            if not self._rechecks.holds(settled):
                raise RemoteProtocolError(f"{stream.peer} did not take the contribution before the next average ended")
            async with asyncio.timeout(_PART_SECONDS):
                await stream.send_data(memoryview(settled.own[part.index]))
        tries[stream.peer] = 0
        await stream.until_closed(_PART_SECONDS)

    # --- as an assessor ---

    async def fetch(self, settled: Settled, subject: PeerId, executor: Executor) -> torch.Tensor:
        """Fetch the contribution of `subject` as all hosts decode it, float32 [P]. Raises ContributionNotShown; AveragingError
        if this peer may be the cause, or asked so late that an honest subject may have dropped it."""
        loop, arrived = asyncio.get_running_loop(), list[Part]()
        begun, is_in_time = loop.time(), not self._rechecks.is_past(settled.spec)
        for tries_left in reversed(range(_TRIES)):
            try:
                return await self._fetched(settled, subject, executor, arrived)
            except (StreamLost, RemoteProtocolError, TimeoutError) as error:
                cause = error.with_traceback(None)  # the traceback refers to received data, which is as large as the model
            if not isinstance(cause, StreamLost) or not tries_left or self._rechecks.is_past(settled.spec):
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        why = f"{subject} did not show its contribution: {cause}"
        is_at_fault = is_in_time and (
            isinstance(cause, RemoteProtocolError)
            or (self._had_time(settled, loop.time() - begun, arrived) and await self._local_fault() is None)
        )
        raise (ContributionNotShown(why, suspects=(subject,)) if is_at_fault else AveragingError(why)) from cause

    def _had_time(self, settled: Settled, seconds: float, arrived: Collection[Part]) -> bool:
        """Return whether an honest subject would have shown everything in so many seconds, at the speed of the links in the
        average itself. A retry does not show that speed, since some of its parts were there before."""
        if not arrived or not self._rechecks.is_past(settled.spec):
            return True
        return not settled.spec.is_retry and seconds >= _PATIENCE * settled.seconds

    async def _fetched(self, settled: Settled, subject: PeerId, executor: Executor, arrived: list[Part]) -> torch.Tensor:
        """Try once to fetch the contribution; parts that come are added to `arrived`."""
        spec, loop = settled.spec, asyncio.get_running_loop()
        vector = torch.empty(spec.size)
        came: dict[int, bytearray] = {}

        def room(part: Part) -> memoryview:
            came[part.index] = bytearray(part.num_sent_bytes)
            return memoryview(came[part.index])

        parts, ending = tuple(spec.parts), None
        stream = await self._connect(subject, _CONNECT_SECONDS)
        try:
            stream.sink = sink = PartSink(subject, parts, room=room, on_part=arrived.append, permitted=lambda: len(parts))
            stream.max_control_bytes = max(CONTROL_BYTES, _ROOT_BYTES * len(parts))
            stream.send(FrameKind.HELLO, Hello(purpose=Purpose.ASSESS, key=spec.key, spec=spec.digest).encode())
            async with asyncio.timeout(2 * _PART_SECONDS):  # the subject waits for two events, up to this limit each
                roots = _checked_roots(settled, subject, await stream.receive(FrameKind.PROOF))
            ending = asyncio.ensure_future(stream.receive(FrameKind.NOTE))  # no note comes: this raises when the stream ends
            ending.add_done_callback(lambda done: done.cancelled() or done.exception())  # avoids a warning if not awaited
            for turn, part in enumerate(parts):
                if not self._rechecks.holds(settled):
                    raise TimeoutError("it was not here before the next average ended")
                await _arrived(sink, turn + 1, ending)
                data = came.pop(part.index)
                await loop.run_in_executor(executor, _decode, spec, part, data, roots[part.index], vector)
        finally:
            stream.close()
            if ending is not None:
                ending.cancel()
        return vector


async def _arrived(sink: PartSink, count: int, ending: "asyncio.Future[bytes]") -> None:
    """Wait until so many parts are here. Raises as `ending` does, RemoteProtocolError, TimeoutError."""
    waiting = asyncio.ensure_future(sink.wait_for(count))
    try:
        async with asyncio.timeout(_PART_SECONDS):
            await asyncio.wait((waiting, ending), return_when=asyncio.FIRST_COMPLETED)
        if sink.num_arrived < count:
            ending.result()
            raise RemoteProtocolError("less than a contribution")
    finally:
        waiting.cancel()


def _checked_roots(settled: Settled, subject: PeerId, payload: bytes) -> Sequence[bytes]:
    """Return the roots of all parts, by index, checked against the contribution's signed root. Raises RemoteProtocolError."""
    spec = settled.spec
    if len(payload) != _ROOT_BYTES * spec.num_parts:
        raise RemoteProtocolError("roots of another number of parts")
    leaves, first = list[tuple[bytes, ...]](), 0
    for shard in spec.shards:
        rows = range(first, first + len(shard))
        leaves.append(tuple(payload[_ROOT_BYTES * row : _ROOT_BYTES * (row + 1)] for row in rows))
        first += len(shard)
    place = spec.contributors.index(spec.members.index(subject))
    if root_of(spec, [tree_root(shard) for shard in leaves]) != settled.roots[place]:
        raise RemoteProtocolError("parts that it did not commit itself to")
    of_parts = [b""] * spec.num_parts
    for shard, roots in zip(spec.shards, leaves, strict=True):
        for part, root in zip(shard, roots, strict=True):
            of_parts[part.index] = root
    return of_parts


def _decode(spec: AllReduceSpec, part: Part, data: bytearray, root: bytes, vector: torch.Tensor) -> None:
    """Check a part and decode it to its place in `vector` [P]. Raises RemoteProtocolError."""
    if sent_root(spec, part, data) != root:
        raise RemoteProtocolError("a part that it did not commit itself to")
    values = spec.codec.decode(data)
    if len(values) != part.size or not fits(spec.codec, values):
        raise RemoteProtocolError("a part that is not finite, or of another size")
    vector[part.first : part.first + part.size] = values
