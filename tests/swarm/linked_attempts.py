"""Attempts at averages over socket pairs, without daemons: all members in one event loop, and a death where a test wants it."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from adloco_p2p.background import BackgroundTasks
from adloco_p2p.core.model.averages import LostShare
from adloco_p2p.core.model.ledger_entry import Evidence
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import AveragingError
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec
from adloco_p2p.swarm.allreduce.butterfly import Butterfly
from adloco_p2p.swarm.allreduce.handshake import Hello, failure
from adloco_p2p.swarm.allreduce.held_uploads import HeldUploads
from adloco_p2p.swarm.allreduce.pledges import Notary
from adloco_p2p.swarm.allreduce.topology import AttemptResult, AveragingLimits, Context
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind, StreamLost
from adloco_p2p.swarm.transport.stall_detector import StallDetector
from adloco_p2p.swarm.transport.stream_pool import StreamPool
from tests.swarm.averaging_peers import key_of, sign

LIMITS = AveragingLimits(stall_seconds=600.0, longest_stall_seconds=600.0, connect_seconds=600.0, grace_seconds=0.0)
TIMEOUT_SECONDS = 600.0
PART_BYTES = 1 << 12


def name_of(number: int) -> PeerId:
    return PeerId(f"peer {number}")


class Inline(Executor):
    """Runs everything at once: the order of events is that of one event loop."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*arguments, **named))
        except Exception as error:  # as every executor does
            done.set_exception(error)
        return done


@dataclass
class Strike:
    """Kills a member when the members have sent so many bytes of data."""

    victim: int = -1
    after_bytes: float = float("inf")
    sent_bytes: int = 0
    killed: PeerId | None = None
    then: "Strike | None" = None
    """What follows after the death."""
    attempts: Mapping[PeerId, Butterfly] = field(default_factory=dict)

    up_piece_bytes = down_piece_bytes = PART_BYTES

    def of(self, _me: PeerId) -> "Strike":
        """What paces this member."""
        return self

    async def sending(self, num_bytes: int) -> None:
        if self.then is not None and self.then.attempts:
            await self.then.sending(num_bytes)
            return
        before, self.sent_bytes = self.sent_bytes, self.sent_bytes + num_bytes
        if before < self.after_bytes <= self.sent_bytes:
            self.killed, attempt = tuple(self.attempts.items())[self.victim]
            for each in (attempt, attempt._earlier):
                if each is not None:
                    each.fail("killed")
                    each.close()
        await asyncio.sleep(0)

    def received(self, _num_bytes: int) -> float:
        return 0.0


@dataclass
class Stall(Strike):
    """The victim's own parts stop when it has sent so many bytes; it lives."""

    def of(self, me: PeerId) -> Strike:
        return self if me == name_of(self.victim) else Strike()

    async def sending(self, num_bytes: int) -> None:
        self.sent_bytes += num_bytes
        if self.sent_bytes > self.after_bytes:
            await asyncio.get_running_loop().create_future()


class LinkedPeers:
    """So many peers; what they hold of failed attempts stays with them."""

    def __init__(self, num_peers: int, *, rule: str = "mean", codec: str = "float32", limits: AveragingLimits = LIMITS) -> None:
        self.names = tuple(name_of(number) for number in range(num_peers))
        self.held = {name: HeldUploads() for name in self.names}
        self.evidence: list[Evidence] = []
        self._rule, self._codec, self._limits = rule_named(rule), codec_named(codec), limits

    def spec(self, size: int, *, without: tuple[int, ...] = (), attempt: int = 0) -> AllReduceSpec:
        """Peer i has i + 1 samples, and reduces as much as every other."""
        members = [number for number in range(len(self.names)) if number not in without]
        lost = tuple(LostShare(sum(member < gone for member in members), 1.0) for gone in without)
        return AllReduceSpec(
            key=key_of(f"{attempt} without {without}"),
            weights=tuple((self.names[number], number + 1) for number in members),
            shares=(1.0,) * len(members),
            size=size,
            codec=self._codec,
            part_bytes=PART_BYTES,
            rule=self._rule,
            steps=(1,) * len(members),
            attempt=attempt,
            lost=lost,
        )

    def average(
        self, spec: AllReduceSpec, vectors: list[torch.Tensor], strike: Strike | None = None
    ) -> list[AttemptResult | BaseException]:
        """What each member gets."""
        return asyncio.run(self._average([(spec, strike or Strike())], vectors))

    def complete(
        self, steps: list[tuple[AllReduceSpec, Strike]], vectors: list[torch.Tensor]
    ) -> list[AttemptResult | BaseException]:
        """What each member of the last attempt gets; those after the first one complete it."""
        return asyncio.run(self._average(steps, vectors))

    async def _average(
        self, steps: list[tuple[AllReduceSpec, Strike]], vectors: list[torch.Tensor]
    ) -> list[AttemptResult | BaseException]:
        attempts: dict[PeerId, Butterfly] = {}
        """Of the newest step."""
        begun: dict[tuple[Digest, PeerId], Butterfly] = {}
        first: dict[PeerId, Butterfly] = {}
        failed: list[Butterfly] = []
        serving = BackgroundTasks()

        async def serve(stream: FramedStream, peer: PeerId) -> None:
            try:
                hello = Hello.decode(await stream.receive(FrameKind.HELLO))
                await begun[hello.key, peer].serve(stream, hello)
            except StreamLost:
                pass
            finally:
                stream.close()

        def connect_from(me: PeerId) -> Callable[[PeerId, float], Any]:
            async def connect(peer: PeerId, _timeout_seconds: float) -> FramedStream:
                ours, theirs = socket.socketpair()
                mine = await FramedStream.take_over(peer, *await asyncio.open_connection(sock=ours))
                other = await FramedStream.take_over(me, *await asyncio.open_connection(sock=theirs))
                mine.pace, other.pace = steps[0][1].of(me), steps[0][1].of(peer)
                serving.begin(serve(other, peer))
                return mine

            return connect

        pools: dict[PeerId, StreamPool] = {}

        results: list[AttemptResult | BaseException] = []
        for (spec, strike), (_, then) in zip(steps, [*steps[1:], (None, None)], strict=True):
            attempts, strike.then = {}, then
            for me in spec.members:
                pools.setdefault(me, StreamPool(connect_from(me)))
                if first:
                    attempts[me] = await _completed(first[me], spec)
                else:
                    vector, room = vectors[self.names.index(me)], np.empty(spec.num_result_bytes, dtype=np.uint8)
                    attempts[me] = Butterfly(spec, vector, room, TIMEOUT_SECONDS, self._context(me, pools[me]))
                begun[spec.key, me] = attempts[me]
            first, strike.attempts = first or attempts, attempts
            results = await asyncio.gather(*(_end_of(me, strike, failed) for me in attempts), return_exceptions=True)
        for attempt in failed if len(steps) == 1 else ():
            attempt.let_go()
        for attempt in begun.values():
            await attempt.closed()
        for pool in pools.values():
            pool.close()
        serving.cancel()
        await serving.settled()
        return list(results)

    def _context(self, me: PeerId, pool: StreamPool) -> Context:
        async def no_fault() -> None:
            return None

        return Context(
            own_peer=me,
            limits=self._limits,
            executor=Inline(),
            pool=pool,
            stall_detector=StallDetector(least_seconds=600.0, most_seconds=600.0),
            local_fault=no_fault,
            notary=Notary(
                me,
                sign=lambda payload: sign(me, payload),
                verify=lambda peer, payload, signature: sign(peer, payload) == signature,
                on_evidence=self.evidence.append,
            ),
            held=self.held[me],
            keeps_contributions=False,
            on_refused=lambda *_: None,
        )


async def _completed(earlier: Butterfly, spec: AllReduceSpec) -> Butterfly:
    completing = replace(spec, completes=earlier.decision, rule=earlier.rule_of_rest(spec.members))
    return await earlier.completed_by(completing, TIMEOUT_SECONDS)


async def _end_of(me: PeerId, strike: Strike, failed: list[Butterfly]) -> AttemptResult:
    """Attempts that failed, and that a retry may complete, come into `failed`."""
    attempt = strike.attempts[me]
    try:
        return await attempt.run()
    except AveragingError as error:
        if me != strike.killed:
            for other in strike.attempts.values():
                other.on_remote_failure(me, attempt.spec.digest, failure(str(error), error.suspects))
        if me == strike.killed or attempt.decision is None:
            attempt.close()
        else:
            failed.append(attempt)
        raise
