"""The simulator is only as good as its faults: each of these bugs must be caught within so many seeds."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from adloco_p2p.core.agreement.consensus import Consensus
from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.recovery import RecoveredState
from adloco_p2p.core.model.events import Outcome, Persist
from adloco_p2p.core.model.ledger_entry import Ballot, CastVote, Certificate, Vote
from adloco_p2p.core.model.types import Digest, PeerId, RoundPlan, roster_of
from adloco_p2p.sim.simulate import agreement_seed, summary


class VotesTwiceAfterRestart(Consensus):
    def _restore(self, recovered: RecoveredState) -> None:
        del recovered


class CountsMessagesInsteadOfPeers(Consensus):
    def _on_vote(self, sender: PeerId, message: Vote) -> None:
        if self._verify(message.peer, message.payload, message.signature):
            self.slot.votes[PeerId(f"{message.peer}#{len(self.slot.votes)}")] = message
            self._ask_for(message.value, sender)


class IgnoresTheLock(Consensus):
    def _locked_value(self) -> Digest | None:
        return None


class UsesAnOldRoster(Consensus):
    def _open_slot(self, now: float) -> None:
        super()._open_slot(now)
        self.slot.roster = self.slot.electorate = roster_of(self.ledger.plans[-2:][0])


class RepliesBeforePersisting(Consensus):
    def _flush(self, now: float) -> list[Outcome]:
        return sorted(super()._flush(now), key=lambda outcome: isinstance(outcome, Persist))


class AcceptsUnsignedReports(Consensus):
    def __init__(self, me: PeerId, **arguments: Any) -> None:
        super().__init__(me, **{**arguments, "verify": lambda peer, payload, signature: True})


class IteratesInHashOrder(Consensus):
    def _held(self) -> dict[PeerId, Digest]:
        held = super()._held()
        return {peer: held[peer] for peer in sorted(held, key=lambda peer: hash((peer, self.me)))}


class BreaksItsPromise(Consensus):
    """Heeds proposals of ballots below the one that it promised."""

    def _accept(self, now: float) -> bool:
        promised, self.slot.promised = self.slot.promised, None
        has_accepted = super()._accept(now)
        if not has_accepted:
            self.slot.promised = promised
        return has_accepted


class BelievesAnyAbsence(Consensus):
    def _refuse(self, ballot: Ballot, silent: Sequence[PeerId], now: float) -> bool:
        return super()._refuse(ballot, (), now)


class ActsBeforeTheMajority(Consensus):
    """Takes its own vote for the certificate."""

    def _finish(self, now: float) -> bool:
        own = self.slot.votes.get(self.me)
        if own is None or own.abstains or not isinstance(self._plan_of(own.value), RoundPlan):
            return super()._finish(now)
        cast = CastVote(peer=self.me, abstains=False, signature=own.signature)
        self._append_value(own.value, Certificate(ballot=own.ballot, absent=own.absent, votes=(cast,)), now)
        return True


def with_consensus(kind: type[Consensus]) -> Any:
    def make(me: PeerId, **arguments: Any) -> GossipAgreement:
        agreement = GossipAgreement(me, **arguments)
        parts = {name: arguments[name] for name in ("sign", "verify", "decide", "draw")}
        agreement.consensus = kind(me, members=agreement.members, **parts)
        return agreement

    return make


def with_timing(**changes: float) -> Any:
    """The peers' own idea of durations differs from what the checkers hold them to."""

    def make(me: PeerId, **arguments: Any) -> GossipAgreement:
        return GossipAgreement(me, **{**arguments, "timing": replace(arguments["timing"], **changes)})

    return make


BUGS = {
    "vote twice after restart": with_consensus(VotesTwiceAfterRestart),
    "count messages instead of peers": with_consensus(CountsMessagesInsteadOfPeers),
    "ignore a lock": with_consensus(IgnoresTheLock),
    "use an old roster": with_consensus(UsesAnOldRoster),
    "reply before persisting": with_consensus(RepliesBeforePersisting),
    "accept an unsigned report": with_consensus(AcceptsUnsignedReports),
    "iterate in hash order": with_consensus(IteratesInHashOrder),
    "forget a lease": with_timing(lease_seconds=0.5),
    "count one's own sleep as their silence": with_timing(stall_seconds=inf),
    "break a promise": with_consensus(BreaksItsPromise),
    "believe any absence": with_consensus(BelievesAnyAbsence),
    "act before the majority": with_consensus(ActsBeforeTheMajority),
}
ENOUGH_SEEDS = 150


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_caught(bug: str) -> None:
    caught = next((seed for seed in range(ENOUGH_SEEDS) if agreement_seed(seed, factory=BUGS[bug]).violation), None)
    assert caught is not None, f"{bug}: not caught in {ENOUGH_SEEDS} seeds"


def test_a_failing_run_tells_its_seed_and_its_story() -> None:
    results = [agreement_seed(seed, factory=BUGS["reply before persisting"]) for seed in range(4)]
    failed = [result for result in results if result.violation is not None]
    assert len(failed) >= 2
    lines = summary(results).splitlines()
    assert lines[0] == f"{4 - len(failed)} of 4 runs kept every promise"
    start = lines.index(f"seed {failed[0].seed} with {failed[0].peers} peers FAILED: {failed[0].violation}")
    assert tuple(lines[start + 1 : -1]) == failed[0].trace != ()
    assert lines[-1] == "seeds that failed too: " + ", ".join(str(result.seed) for result in failed[1:])
