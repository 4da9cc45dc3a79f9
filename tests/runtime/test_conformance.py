"""One suite for the runtime's swarm ports, on the fake in memory and on hivemind's P2P: what the loop may rely on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hivemind.p2p import P2P

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.effects import FetchState
from adloco_p2p.core.model.messages import MESSAGE_KINDS, AttemptFailed
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.errors import AveragingError, StateTransferFailed
from adloco_p2p.numerics.digest import state_digest
from adloco_p2p.runtime.adapters.swarm_ports import NetworkAveraging, NetworkMessenger, NetworkStates
from adloco_p2p.runtime.node.ports import Averaging, Messenger, StateExchange
from adloco_p2p.swarm.allreduce.averager import Averager
from adloco_p2p.swarm.in_memory import MemorySwarm
from adloco_p2p.swarm.transfer.state_transfer import StateFetcher, StateServer
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.gossip import GossipWire
from tests.swarm.averaging_peers import LIMITS, TIMEOUT_SECONDS, all_connected, signing
from tests.swarm.patience import patience

SIZE = 5_000
RUN = canonical.digest("conformance")
INSTANCE = InstanceId(2)


async def _nobody(peers: Sequence[PeerId]) -> tuple[PeerId, ...]:
    return ()


class Inbox(list[tuple[PeerId, object]]):
    """What a member heard, and a way to wait for more."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def hear(self, sender: PeerId, message: object) -> None:
        self.append((sender, message))
        self._news.set()

    async def until(self, wanted: tuple[PeerId, object]) -> None:
        """The test's own timeout bounds it."""
        while wanted not in self:
            self._news.clear()
            await self._news.wait()


@dataclass
class Member:
    """One peer as the loop sees it."""

    me: PeerId
    averaging: Averaging
    messenger: Messenger
    states: StateExchange
    inbox: Inbox = field(default_factory=Inbox)


Swarm = Callable[[], contextlib.AbstractAsyncContextManager[list[Member]]]


@contextlib.asynccontextmanager
async def in_memory() -> AsyncIterator[list[Member]]:
    swarm = MemorySwarm()
    members = []
    for name in ("a", "b", "c"):
        port = swarm.port(PeerId(name))
        member = Member(me=port.me, averaging=port, messenger=port, states=port)
        port.listen(member.inbox.hear)
        members.append(member)
    yield members


@contextlib.asynccontextmanager
async def on_hivemind() -> AsyncIterator[list[Member]]:
    async with contextlib.AsyncExitStack() as stack:
        members: list[Member] = []
        p2ps: list[P2P] = []
        known: list[Any] = []
        for _ in range(3):
            p2p = await P2P.create(initial_peers=known, startup_timeout=240)
            stack.push_async_callback(p2p.shutdown)
            known += await p2p.get_visible_maddrs()
            p2ps.append(p2p)
            members.append(await _on_network(p2p, stack, lambda: [member.me for member in members]))
        await all_connected(p2ps)
        yield members


async def _on_network(p2p: P2P, stack: contextlib.AsyncExitStack, roster: Callable[[], list[PeerId]]) -> Member:
    inbox = Inbox()

    async def on_message(sender: PeerId, message: object) -> None:
        inbox.hear(sender, message)

    endpoint = Endpoint(p2p)
    wire = GossipWire(endpoint, run=RUN, kinds=MESSAGE_KINDS, on_message=on_message, on_refused=lambda peer, reason: None)
    averager = Averager(endpoint, part_bytes=4096, limits=LIMITS, **signing(p2p))
    server = StateServer(endpoint)
    for service in (wire, averager, server):
        await service.start()
        stack.push_async_callback(service.stop)
    pump = asyncio.get_running_loop().create_task(wire.pump())
    stack.callback(pump.cancel)
    return Member(
        me=endpoint.me,
        averaging=NetworkAveraging(averager, size=lambda round: SIZE, out_of_reach=_nobody, begin=lambda key: True),
        messenger=NetworkMessenger(wire, roster=roster, fail=_fail),
        states=NetworkStates(
            server,
            StateFetcher(endpoint, server),
            num_parameters=SIZE,
            dtypes=(torch.float32, torch.float32),
            write=lambda _: None,
        ),
        inbox=inbox,
    )


def _fail(error: BaseException) -> None:
    raise error


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    with patience():
        yield


@pytest.fixture(params=[in_memory, on_hivemind], ids=["memory", "hivemind"])
def swarm(request: pytest.FixtureRequest) -> Swarm:
    return request.param


def vector(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


async def average(
    members: list[Member], key: Digest, weights: tuple[int, ...], *, timeout_seconds: float = TIMEOUT_SECONDS
) -> list[Any]:
    pairs = [(member.me, weight) for member, weight in zip(members, weights, strict=True)]
    asked = attempt(key, pairs, timeout_seconds=timeout_seconds)
    tasks = [
        member.averaging.average(asked, vector(index), on_decided=lambda _: None, on_not_shown=lambda *_: None)
        for index, member in enumerate(members)
    ]
    return await asyncio.gather(*tasks, return_exceptions=True)


def attempt(key: Digest, weights: Sequence[tuple[PeerId, int]], *, timeout_seconds: float) -> Average:
    return Average(
        instance=INSTANCE,
        round=0,
        attempt=0,
        key=key,
        plan=RUN,
        weights=tuple(sorted(weights)),
        steps=(1,) * len(weights),
        timeout_seconds=timeout_seconds,
    )


def play(swarm: Swarm, scenario: Callable[[list[Member]], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with swarm() as members:
            await scenario(members)

    asyncio.run(whole())


def test_all_members_get_the_same_bytes_and_they_are_the_weighted_mean(swarm: Swarm) -> None:
    async def scenario(members: list[Member]) -> None:
        results = await average(members, canonical.digest("mean"), (1, 2, 5))
        wanted = (vector(0).double() + 2 * vector(1).double() + 5 * vector(2).double()) / 8
        assert len({result.finished.digest for result in results}) == 1
        assert all(torch.equal(result.vector, results[0].vector) for result in results)
        torch.testing.assert_close(results[0].vector.double(), wanted, rtol=0, atol=1e-6)
        for index, result in enumerate(results):
            assert result.finished.contributors == tuple(sorted(member.me for member in members))
            statistics = result.finished.statistics
            assert statistics.own_sqnorm == pytest.approx(float(vector(index).double().square().sum()), rel=1e-6)
            assert statistics.averaged_sqnorm == pytest.approx(float(wanted.square().sum()), rel=1e-5)
            inner = float((vector(index).double() * wanted).sum())
            assert statistics.inner_product == pytest.approx(inner, rel=1e-4, abs=1e-3)

    play(swarm, scenario)


def test_one_member_alone_gets_its_own_vector(swarm: Swarm) -> None:
    async def scenario(members: list[Member]) -> None:
        (result,) = await average(members[:1], canonical.digest("alone"), (7,))
        assert torch.equal(result.vector, vector(0))
        assert result.finished.contributors == (members[0].me,)

    play(swarm, scenario)


def test_a_host_that_is_alone_keeps_no_average() -> None:
    """Nobody asks for one; of a large model the last ones would fill the memory."""
    swarm = MemorySwarm()
    port = swarm.port(PeerId("a"))
    member = Member(me=port.me, averaging=port, messenger=port, states=port)
    asyncio.run(average([member], canonical.digest("alone"), (1,)))
    assert not swarm.averages


def test_a_missing_member_fails_the_attempt_for_all_and_is_named(swarm: Swarm) -> None:
    async def scenario(members: list[Member]) -> None:
        asked = attempt(canonical.digest("missing"), [(member.me, 1) for member in members], timeout_seconds=1.0)
        tasks = [
            member.averaging.average(asked, vector(index), on_decided=lambda _: None, on_not_shown=lambda *_: None)
            for index, member in enumerate(members[:2])
        ]
        failures = await asyncio.gather(*tasks, return_exceptions=True)
        named = [failed.suspects for failed in failures if isinstance(failed, AveragingError)]
        assert len(named) == 2, failures
        # By the first whose deadline passes. It names the other one, too, where that was slow; and the other one heeds no
        # report that names so many.
        assert any(members[2].me in suspects for suspects in named)

    play(swarm, scenario)


def test_survivors_average_under_a_new_key(swarm: Swarm) -> None:
    async def scenario(members: list[Member]) -> None:
        failed = await average(members[:2] + members[2:], canonical.digest("first"), (1, 1, 1))
        assert not any(isinstance(result, BaseException) for result in failed)
        results = await average(members[:2], canonical.digest("second"), (1, 1))
        assert len({result.finished.digest for result in results}) == 1
        assert results[0].finished.contributors == tuple(sorted(member.me for member in members[:2]))

    play(swarm, scenario)


def test_who_had_no_part_fetches_the_average_by_its_digest(swarm: Swarm) -> None:
    async def scenario(members: list[Member]) -> None:
        results = await average(members[:2], canonical.digest("repair"), (1, 1))
        holders = tuple(member.me for member in members[:2])
        asked = RepairAverage(
            instance=INSTANCE,
            round=0,
            attempt=0,
            key=canonical.digest("repair"),
            digest=results[0].finished.digest,
            contributors=tuple(sorted(holders)),
            from_peers=holders,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        fetched = await members[2].averaging.repair(asked, None)
        assert torch.equal(fetched.vector, results[0].vector)
        assert fetched.finished.digest == results[0].finished.digest
        with pytest.raises(AveragingError):
            await members[2].averaging.repair(replace(asked, digest=canonical.digest("never averaged")), None)

    play(swarm, scenario)


def asked_of(donor: Member, boundary: int, digest: Digest) -> FetchState:
    return FetchState(instance=INSTANCE, round=boundary, digest=digest, from_peers=(donor.me,))


def test_state_is_fetched_as_it_was_offered(swarm: Swarm) -> None:
    async def scenario(members: list[Member]) -> None:
        outer, momentum = vector(10), vector(11)
        digest = state_digest(outer, momentum)
        members[0].states.offer(INSTANCE, 4, digest, (outer, momentum))
        fetched = await members[1].states.fetch(asked_of(members[0], 4, digest))
        assert all(torch.equal(got, want) for got, want in zip(fetched, (outer, momentum), strict=True))

    play(swarm, scenario)


def test_when_an_average_begins_only_the_newest_state_is_served(swarm: Swarm) -> None:
    async def scenario(members: list[Member]) -> None:
        donor, joiner = members[0].states, members[1].states
        newer, older = (vector(10), vector(11)), (vector(12), vector(13))
        for number, state in ((4, older), (5, newer)):
            donor.offer(INSTANCE, number, state_digest(*state), state)
        fetched = await joiner.fetch(asked_of(members[0], 4, state_digest(*older)))
        assert torch.equal(fetched[0], older[0])
        donor.keep_newest(INSTANCE)
        donor.keep_newest(InstanceId(INSTANCE + 1))  # nothing of it was ever offered
        fetched = await joiner.fetch(asked_of(members[0], 5, state_digest(*newer)))
        assert torch.equal(fetched[0], newer[0])
        with pytest.raises(StateTransferFailed):
            await joiner.fetch(asked_of(members[0], 4, state_digest(*older)))

    play(swarm, scenario)


def test_a_state_without_a_donor_is_an_error(swarm: Swarm) -> None:
    async def scenario(members: list[Member]) -> None:
        with pytest.raises(StateTransferFailed):
            await members[1].states.fetch(asked_of(members[0], 4, canonical.digest("nothing")))

    play(swarm, scenario)


def test_messages_reach_the_named_peer_and_broadcasts_everybody_else(swarm: Swarm) -> None:
    async def scenario(members: list[Member]) -> None:
        message = AttemptFailed(instance=INSTANCE, round=1, attempt=0, suspects=())
        members[0].messenger.send(members[1].me, message)
        await members[1].inbox.until((members[0].me, message))
        other = AttemptFailed(instance=INSTANCE, round=2, attempt=0, suspects=())
        members[2].messenger.broadcast(other)
        for member in members[:2]:
            await member.inbox.until((members[2].me, other))
        assert members[1].inbox == [(members[0].me, message), (members[2].me, other)]
        assert members[2].inbox == []
        members[0].messenger.send(PeerId("12D3KooWDVTotndyLdMRbGdWzMTDhEcmeN4iMiKg3puoVxqnLty6"), message)  # nobody; no error

    play(swarm, scenario)
