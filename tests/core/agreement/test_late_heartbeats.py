"""A member whose heartbeats wait behind the data that it sends: it is not gone while that data comes."""

from collections.abc import Callable, Sequence

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.model.events import PeerBack, PeerGone
from adloco_p2p.core.model.outcomes import Outcome
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import Returned, Suspected
from tests.core.agreement.test_consensus import Swarm
from tests.core.core_values import peer

LEASE = Timing().lease(4)
ME, LATE, *OTHERS = (peer(index) for index in range(4))


class Watch:
    """One peer of four: the others tick and send as usual, except that nothing but data comes from LATE."""

    def __init__(self) -> None:
        self.swarm = Swarm(4)
        self.swarm.deliver()
        self.began = self.swarm.now
        self.seen: list[tuple[float, Outcome]] = []

    @property
    def me(self) -> GossipAgreement:
        return self.swarm.peers[ME]

    def pass_time(self, seconds: int, *, data: bool, among: Sequence[PeerId] = (ME, *OTHERS)) -> None:
        for _ in range(seconds):
            self.swarm.now += 1.0
            if data:
                self.me.note_data([LATE, PeerId("stranger")], self.swarm.now)
            for name in among:
                outcomes = self.swarm.peers[name].tick(self.swarm.now)
                self.seen += [(self.swarm.now - self.began, outcome) for outcome in outcomes if name == ME]
                self.swarm.take(name, outcomes)
            self.swarm.deliver(to=among)

    def at(self, kind: type[Outcome]) -> list[float]:
        """When this peer noted this of LATE."""
        return [at for at, outcome in self.seen if isinstance(outcome, kind) and getattr(outcome, "peer", None) == LATE]


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_without_data_a_silent_member_is_gone_after_its_lease(watch: Watch) -> None:
    watch.pass_time(12, data=False)
    assert watch.at(PeerGone) == [pytest.approx(LEASE, abs=1.0)]


def test_while_data_comes_it_is_not_gone_and_is_back_with_its_beats(watch: Watch) -> None:
    watch.pass_time(20, data=True)
    assert watch.at(Suspected) and not watch.at(PeerGone)
    watch.pass_time(2, data=True, among=tuple(watch.swarm.peers))
    assert watch.at(Returned) and not watch.at(PeerGone) and not watch.at(PeerBack)


def test_when_the_data_ends_it_is_gone_a_lease_later(watch: Watch) -> None:
    watch.pass_time(20, data=True)
    watch.pass_time(10, data=False)
    assert watch.at(PeerGone) == [pytest.approx(20 + LEASE, abs=1.0)]


def test_data_brings_back_nobody_that_is_gone(watch: Watch) -> None:
    """Only a beat does: what comes may have been sent long ago."""
    watch.pass_time(12, data=False)
    watch.pass_time(5, data=True)
    assert len(watch.at(PeerGone)) == 1 and not watch.at(PeerBack)


def leave(watch: Watch) -> None:
    watch.swarm.take(LATE, watch.swarm.peers[LATE].leave(watch.swarm.now))
    watch.swarm.deliver()


def be_left_out(watch: Watch) -> None:
    for _ in range(3):
        for name in (ME, *OTHERS):
            watch.swarm.report(name, watch.me.ledger.plans[-1].round - 1)
        watch.pass_time(8, data=True)
    assert LATE not in [entry.peer for entry in watch.me.ledger.plans[-1].roster]


@pytest.mark.parametrize("end", [leave, be_left_out])
def test_data_keeps_nobody_that_has_left_or_that_a_plan_leaves_out(watch: Watch, end: Callable[[Watch], None]) -> None:
    """Plans go by beats alone, on which all members agree sooner or later."""
    watch.pass_time(12, data=True)
    assert (ME, LATE) not in watch.swarm.gone
    end(watch)
    watch.pass_time(1, data=True)
    assert watch.swarm.gone.count((ME, LATE)) == 1
