"""The host that evaluates reports after the others, and its report counts all the same."""

from adloco_p2p.core.model.events import Evaluated, Event
from adloco_p2p.core.model.plan import REPORT_LAG
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import HeldOut, Plan, Round
from tests.core.peer.story import PEER0, PEER1, PEER2, Story, rules

EVALUATION_SECONDS = 6.0
"""Of a round of some 11 s, and three times what a plan waits where no speeds are known."""


class SlowEvaluation:
    """Every `Evaluated` reaches its peer so much later."""

    def __init__(self) -> None:
        self.story = Story(rules=rules(rounds=8), peers=3, speeds=(1.0, 1.0, 1.0), hears=self._hears)
        self._is_late = False

    def _hears(self, peer: PeerId, event: Event) -> bool:
        if not isinstance(event, Evaluated) or self._is_late:
            return True
        self.story.at(self.story.world.time + EVALUATION_SECONDS, self._feed, peer, event)
        return False

    def _feed(self, peer: PeerId, event: Event) -> None:
        machine = self.story.machine(peer)
        assert machine.process is not None
        self._is_late = True
        machine.feed(event, machine.process)
        self._is_late = False


def test_a_plan_waits_for_the_host_that_evaluates() -> None:
    """Without the wait that host's samples, statistics and held-out loss were in no plan. It costs no time: the plan of a round
    is there before the round before has ended anywhere."""
    story = SlowEvaluation().story.play()
    plans = {plan.round: (at, plan) for at, plan in story.effects(Plan, PEER0)}
    reported = {(number, entry.peer): entry.last_report for number, (_, plan) in plans.items() for entry in plan.roster}
    expected = {(number, peer): number - REPORT_LAG for number in range(2, 9) for peer in (PEER0, PEER1, PEER2)}
    assert {key: last for key, last in reported.items() if key[0] >= REPORT_LAG} == expected
    first_end: dict[int, float] = {}
    for at, log in story.effects(Round):
        first_end.setdefault(log.round, at)
    assert all(plans[number][0] < first_end[number - 1] for number in range(2, 9))


def test_every_peer_learns_what_the_others_measured() -> None:
    """Without waiting for the plan that the reports end up in, so a peer's screen and report lack no round."""
    story = SlowEvaluation().story.play()
    for peer in (PEER0, PEER1, PEER2):
        own = {log.round for _, log in story.effects(Round, peer) if log.heldout_loss is not None}
        claimed = {log.round for _, log in story.effects(HeldOut, peer)}
        assert own | claimed >= {*range(8)} and not own & claimed, peer
