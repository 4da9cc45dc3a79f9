"""Adapters of the swarm's classes to the runtime's ports."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence

import torch

from adloco_p2p.background import BackgroundTasks
from adloco_p2p.core.model import messages
from adloco_p2p.core.model.assessments import AssessContribution, ShowContribution
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.effects import FetchState
from adloco_p2p.core.model.messages import WireMessage
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.telemetry import StateDownload
from adloco_p2p.errors import AveragingError
from adloco_p2p.runtime.node.ports import AveragedVector
from adloco_p2p.swarm.allreduce.averager import Averager
from adloco_p2p.swarm.transfer.state_transfer import StateFetcher, StateServer
from adloco_p2p.swarm.transport.gossip import GossipWire

STRANGER_KINDS: dict[str, float] = {
    messages.Heartbeat.__name__: 5.0,
    messages.Ping.__name__: 2.0,
    messages.Leave.__name__: 1.0,
    messages.Pull.__name__: 5.0,
    messages.PullEntries.__name__: 20.0,
    messages.Entries.__name__: 10.0,
}
"""The messages that strangers may send, with the price of each in messages of the strangers' budget. With these a stranger asks
to join, leaves, reads the ledger, or shows the history of its side of a partition. Finding, decoding and encoding the ledger
entries of an answer takes some 50 ms."""
PRICES: dict[str, float] = {messages.PullEntries.__name__: 20.0}
"""The prices of messages in each peer's own budget; other messages cost one."""
PLANS_WITH_SEATS = 4
"""The newest plans whose rosters count as members, since averages and reports of a round go on while the next two plans are
made."""
MAX_SENDS = 256
"""The most messages on their way; further ones are dropped, as by a full network."""
FETCH_SECONDS = 600.0
"""The time limit of one attempt to fetch an instance's state; the next attempt keeps the chunks that have come."""
PARTIAL_SECONDS = 600.0
"""The time for which these chunks stay in memory after an attempt. The next one comes within 32 s where donors are known, and
never where this peer is not to host the instance any more."""
DRAIN_SECONDS = 3.0


class Members:
    """A callable that returns the peers with a seat in one of the newest plans, cheap enough for every message and stream."""

    def __init__(self, plans: Callable[[], Sequence[RoundPlan]]) -> None:
        """`plans` returns the plans of the ledger, oldest first."""
        self._plans = plans
        self._newest: RoundPlan | None = None
        self._members: frozenset[PeerId] = frozenset()

    def __call__(self) -> frozenset[PeerId]:
        plans = self._plans()
        if plans[-1] is not self._newest:
            self._newest = plans[-1]
            self._members = frozenset(roster_entry.peer for plan in plans[-PLANS_WITH_SEATS:] for roster_entry in plan.roster)
        return self._members


class NetworkMessenger:
    """Sends messages in the background, each once. A task that fails is a bug, whose exception goes to `fail`."""

    def __init__(
        self, wire: GossipWire, *, roster: Callable[[], Sequence[PeerId]], fail: Callable[[BaseException], None]
    ) -> None:
        self._wire = wire
        self._roster = roster
        self._tasks = BackgroundTasks(fail)

    def send(self, peer: PeerId, message: WireMessage) -> None:
        self._begin(self._wire.send(peer, message))

    def broadcast(self, message: WireMessage | Report) -> None:
        self._begin(self._wire.broadcast(self._roster(), message))

    async def drain(self) -> None:
        """Give the messages on their way a moment to arrive."""
        await self._tasks.settled(timeout_seconds=DRAIN_SECONDS)

    def _begin(self, work) -> None:  # type: ignore[no-untyped-def]
        if len(self._tasks) >= MAX_SENDS:
            work.close()
        else:
            self._tasks.begin(work)


class NetworkAveraging:
    """Averages over the network, also for a host that is alone, because a joiner fetches its results to catch up."""

    def __init__(
        self,
        averager: Averager,
        *,
        size: Callable[[int], int],
        out_of_reach: Callable[[Sequence[PeerId]], Awaitable[tuple[PeerId, ...]]],
        begin: Callable[[Digest], bool],
    ) -> None:
        """`size` returns how many values a round averages, and `out_of_reach` which of these peers are known to be unreachable
        from here. `begin` records the key of an attempt, in a worker thread; it returns False if the attempt was begun before,
        by this process or an earlier one."""
        self._averager = averager
        self._size = size
        self._out_of_reach = out_of_reach
        self._begin = begin

    async def average(
        self,
        effect: Average,
        vector: torch.Tensor,
        *,
        on_decided: Callable[[Digest], None],
        on_not_shown: Callable[[PeerId, PeerId], None],
    ) -> AveragedVector:
        shares = effect.shares or (1.0,) * len(effect.weights)
        missing = await self._out_of_reach([peer for (peer, _), share in zip(effect.weights, shares, strict=True) if share > 0])
        if missing:  # dialling them once more would delay the whole round
            raise AveragingError(f"no way from here to {', '.join(missing)}", suspects=missing)
        if not await asyncio.to_thread(self._begin, effect.key):  # this peer signs under a key only once
            raise AveragingError("this attempt was begun here before, and given up")
        return await self._averager.average(effect, vector, on_decided=on_decided, on_not_shown=on_not_shown)

    async def repair(self, effect: RepairAverage, vector: torch.Tensor | None) -> AveragedVector:
        return await self._averager.repair(effect, size=self._size(effect.round), vector=vector)

    def show_contribution(self, effect: ShowContribution) -> None:
        self._averager.show_contribution(effect.instance, effect.round, effect.assessors)

    async def contribution(self, effect: AssessContribution) -> tuple[torch.Tensor, torch.Tensor]:
        return await self._averager.contribution(effect.instance, effect.round, effect.subject)


class NetworkStates:
    """Serves and fetches states. It serves the instances' own vectors, which are never written to, so training never waits for
    a download and nothing is copied."""

    def __init__(
        self,
        server: StateServer,
        fetcher: StateFetcher,
        *,
        num_parameters: int,
        dtypes: tuple[torch.dtype, torch.dtype],
        write: Callable[[StateDownload], None],
    ) -> None:
        """`dtypes` are those of outer parameters and momentum. `write` takes the progress of fetches."""
        self._write = write
        self._server = server
        self._fetcher = fetcher
        self._num_parameters, self._dtypes = num_parameters, dtypes
        self._loop = asyncio.get_running_loop()
        self._partial: dict[InstanceId, tuple[torch.Tensor, torch.Tensor]] = {}
        """The states of which some chunks have come, for the next attempt; an instance whose state is here needs none."""
        self._attempts: dict[InstanceId, int] = {}
        """The last attempt of each of them, by its number."""
        self._numbers = itertools.count()

    def offer(self, instance: InstanceId, round: int, digest: Digest, state: Sequence[torch.Tensor]) -> None:
        outer, momentum = state
        self._loop.call_soon_threadsafe(self._server.offer, instance, round, digest, outer, momentum)
        self._loop.call_soon_threadsafe(self._partial.pop, instance, None)

    def keep_newest(self, instance: InstanceId) -> None:
        self._server.keep_newest(instance)

    def retire(self, instance: InstanceId) -> None:
        self._loop.call_soon_threadsafe(self._server.retire, instance)
        self._loop.call_soon_threadsafe(self._partial.pop, instance, None)

    def withdraw(self, instance: InstanceId) -> None:
        self._loop.call_soon_threadsafe(self._server.withdraw, instance)
        self._loop.call_soon_threadsafe(self._partial.pop, instance, None)

    async def fetch(self, effect: FetchState) -> Sequence[torch.Tensor]:
        instance, begun, before = effect.instance, time.monotonic(), None

        def show(received: int, total: int) -> None:
            nonlocal before
            before = received if before is None else before  # an earlier attempt may have left some
            seconds = time.monotonic() - begun
            rate = (received - before) / seconds if seconds > 0 else None
            download = StateDownload(
                round=effect.round, instance=instance, received_bytes=received, total_bytes=total, bytes_per_second=rate
            )
            self._write(download)

        if instance not in self._partial:
            of_outer, of_momentum = (torch.zeros(self._num_parameters, dtype=dtype) for dtype in self._dtypes)
            self._partial[instance] = of_outer, of_momentum
        outer, momentum = self._partial[instance]
        attempt = self._attempts[instance] = next(self._numbers)
        try:
            await self._fetcher.fetch(effect, outer, momentum, timeout_seconds=FETCH_SECONDS, on_progress=show)
            self._partial.pop(instance, None)
        finally:
            self._loop.call_later(PARTIAL_SECONDS, self._give_up, instance, attempt)
        return outer, momentum

    def _give_up(self, instance: InstanceId, attempt: int) -> None:
        """Forget the chunks that have come, unless another attempt has begun since."""
        if self._attempts.get(instance) == attempt:
            del self._attempts[instance]
            self._partial.pop(instance, None)
