"""The start of a run with founders: whom a founder waits for, whom it dials, and when it stops waiting."""

import asyncio
from collections.abc import Collection, Sequence
from types import SimpleNamespace

import pytest

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import SwarmError
from adloco_p2p.swarm.discovery import gathering
from adloco_p2p.swarm.discovery.gathering import GATHER_SECONDS, GIVE_WAY_SECONDS, LOOK_SECONDS, gather

RUN = Digest("ab" * 32)
SMALLER, ME, LARGER = PeerId("a"), PeerId("b"), PeerId("c")


class Founding:
    """The network around one founder, with time that passes only while it waits. The others are announced from the start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.connected_at: dict[PeerId, float] = {}
        """From when each of the others is connected, whoever dialled."""
        self.ready_at = {SMALLER: 0.0, LARGER: 0.0}
        self.begun_at = GATHER_SECONDS + 1
        self.seconds_to_connect = 0.0
        self.failure: SwarmError | None = None
        self.dialled: list[tuple[float, set[PeerId]]] = []
        self.pinged: list[PeerId] = []
        self.reports: list[list[PeerId]] = []
        monkeypatch.setattr(gathering, "connect_to_run", self._connect_to_run)
        monkeypatch.setattr(gathering, "ping_all", self._ping_all)
        monkeypatch.setattr(gathering, "time", SimpleNamespace(monotonic=lambda: self.now))
        waiting = SimpleNamespace(sleep=self._sleep, wait=self._wait, create_task=asyncio.create_task, gather=asyncio.gather)
        monkeypatch.setattr(gathering, "asyncio", waiting)

    def gathered(self) -> list[PeerId]:
        node = SimpleNamespace(me=ME, p2p=None, peers_connected=self._peers_connected)

        async def running() -> list[PeerId]:
            return await gather(
                node,  # type: ignore[arg-type]
                SimpleNamespace(),  # type: ignore[arg-type]
                RUN,
                [SMALLER, LARGER],
                has_begun=lambda: self.now >= self.begun_at,
                report=lambda missing: self.reports.append(list(missing)),
            )

        return asyncio.run(running())

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    async def _wait(self, tasks: Sequence[asyncio.Task[object]], **limit: float) -> None:
        end = self.now + limit["timeout"]
        while self.now < end and not all(task.done() for task in tasks):
            self.now += LOOK_SECONDS / 5
            await asyncio.sleep(0)

    async def _connect_to_run(
        self, *_: object, should_retry: bool, members: Sequence[PeerId], awaited: Collection[PeerId]
    ) -> SimpleNamespace:
        assert not should_retry, "three attempts would take half a minute"
        self.dialled.append((self.now, set(members) - set(awaited)))
        end = self.now + self.seconds_to_connect
        while self.now < end:  # noqa: ASYNC110 - this time passes while others wait
            await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(records=[SimpleNamespace(peer=peer) for peer in (SMALLER, LARGER)])

    async def _peers_connected(self) -> list[PeerId]:
        return [peer for peer, at in self.connected_at.items() if self.now >= at]

    async def _ping_all(self, p2p: object, peers: Sequence[PeerId]) -> dict[PeerId, SimpleNamespace]:
        del p2p
        self.pinged += peers
        return {peer: SimpleNamespace(run=RUN if self.now >= self.ready_at[peer] else "") for peer in peers}


@pytest.fixture
def founding(monkeypatch: pytest.MonkeyPatch) -> Founding:
    return Founding(monkeypatch)


def test_a_founder_waits_for_the_others_until_they_are_ready_to_train(founding: Founding) -> None:
    founding.connected_at = {SMALLER: 1.0, LARGER: 20.0}
    founding.ready_at[SMALLER] = 60.0
    assert founding.gathered() == []
    assert 60.0 <= founding.now < 60.0 + 4 * LOOK_SECONDS
    assert founding.reports == [[SMALLER, LARGER], [SMALLER], []]


def test_an_attempt_to_connect_holds_nothing_up_and_a_peer_without_a_connection_is_not_asked(founding: Founding) -> None:
    """The others may dial meanwhile. A question to a peer that is not connected takes five seconds."""
    founding.seconds_to_connect = 30.0
    founding.connected_at = {SMALLER: 2.0, LARGER: 4.0}
    assert founding.gathered() == []
    assert founding.now < 4.0 + 4 * LOOK_SECONDS
    assert founding.pinged == [SMALLER, LARGER] and len(founding.dialled) == 1


def test_of_two_founders_the_one_with_the_smaller_name_dials_first(founding: Founding) -> None:
    founding.connected_at = {LARGER: 1.0, SMALLER: 10.0}
    assert founding.gathered() == []
    early = [peers for at, peers in founding.dialled if at < GIVE_WAY_SECONDS]
    late = [peers for at, peers in founding.dialled if at > GIVE_WAY_SECONDS + 2 * LOOK_SECONDS]
    assert early and all(peers == {LARGER} for peers in early)
    assert late and all(peers == {SMALLER, LARGER} for peers in late), "the other one may be unable to dial"


def test_a_founder_begins_when_another_one_has_begun(founding: Founding) -> None:
    """Else it would be silent to the others, which take it for gone after some seconds."""
    founding.connected_at = {SMALLER: 0.0}
    founding.begun_at = 7.0
    assert founding.gathered() == [LARGER]
    assert 7.0 <= founding.now < 7.0 + 2 * LOOK_SECONDS and founding.reports == [[SMALLER, LARGER], [LARGER]]


def test_a_founder_that_never_comes_is_waited_for_ten_minutes(founding: Founding) -> None:
    founding.connected_at = {SMALLER: 0.0}
    assert founding.gathered() == [LARGER]
    assert GATHER_SECONDS <= founding.now < GATHER_SECONDS + 2 * LOOK_SECONDS


def test_a_failure_of_this_peers_own_network_ends_the_wait(founding: Founding) -> None:
    founding.failure = SwarmError("the p2p daemon does not answer", code="E306")
    with pytest.raises(SwarmError, match="daemon"):
        founding.gathered()
