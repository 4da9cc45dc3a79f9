"""Agreements with a fault planted in one part: the textbook mistakes of a consensus."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from adloco_p2p.core.agreement.acceptor import Acceptor
from adloco_p2p.core.agreement.consensus import Consensus
from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.learner import Learner
from adloco_p2p.core.agreement.proposer import Proposer
from adloco_p2p.core.agreement.slot import Slot
from adloco_p2p.core.agreement.values import Values
from adloco_p2p.core.model.certificate import Ballot, CastVote, Certificate
from adloco_p2p.core.model.effects import Persist
from adloco_p2p.core.model.ledger_entry import Vote
from adloco_p2p.core.model.messages import Refusal
from adloco_p2p.core.model.outcomes import Outcome
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.scalars import Digest, PeerId


class VotesTwiceAfterRestart(Acceptor):
    def restore(self) -> None:
        """Forget all."""


class CountsMessagesInsteadOfPeers(Learner):
    def on_vote(self, message: Vote) -> bool:
        if not self._context.verify(message.peer, message.payload, message.signature):
            return False
        self._votes[PeerId(f"{message.peer}#{len(self._votes)}")] = message
        return True


class IgnoresTheLock(Proposer):
    def locked_value(self, now: float) -> Digest | None:
        del now
        return None


class UsesAnOldRoster(Consensus):
    def _compose(self, slot: Slot) -> None:
        old = roster_of(self.ledger.plans[-2:][0])
        super()._compose(replace(slot, roster=old, electorate=old))


class RepliesBeforePersisting(Consensus):
    def _flush(self, now: float) -> list[Outcome]:
        return sorted(super()._flush(now), key=lambda outcome: isinstance(outcome, Persist))


class AcceptsUnsignedReports(Consensus):
    def __init__(self, me: PeerId, **arguments: Any) -> None:
        super().__init__(me, **{**arguments, "verify": lambda peer, payload, signature: True})


class IteratesInHashOrder(Values):
    @property
    def held(self) -> dict[PeerId, Digest]:
        held = super().held
        return {peer: held[peer] for peer in sorted(held, key=lambda peer: hash((peer, self._context.me)))}


class BreaksItsPromise(Acceptor):
    """Accepts proposals of ballots below the one that it promised."""

    def accept(self, now: float) -> bool:
        promised, self.promised = self.promised, None
        has_accepted = super().accept(now)
        if not has_accepted:
            self.promised = promised
        return has_accepted


class BelievesAnyAbsence(Acceptor):
    def refusal(self, ballot: Ballot, silent: Sequence[PeerId], now: float) -> Refusal | None:
        return super().refusal(ballot, (), now)


class ActsBeforeTheMajority(Consensus):
    """Takes its own vote for the certificate."""

    def _finish(self, now: float) -> bool:
        own = self.learner.vote_of(self.me)
        if own is None or own.abstains or not self.values.is_valid(own.value):
            return super()._finish(now)
        cast = CastVote(peer=self.me, abstains=False, signature=own.signature)
        self._append_value(own.value, Certificate(ballot=own.ballot, absent=own.absent, votes=(cast,)), now)
        return True


def with_part(kind: type[Learner | Values | Acceptor | Proposer]) -> Any:
    """One part of every slot is of this kind."""

    class Faulty(Consensus):
        def _compose(self, slot: Slot) -> None:
            super()._compose(slot)
            for part in (self.learner, self.values, self.acceptor, self.proposer):
                if issubclass(kind, type(part)):
                    part.__class__ = kind

    return with_consensus(Faulty)


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


AGREEMENTS = {
    "vote twice after restart": (with_part(VotesTwiceAfterRestart), 0),
    "count messages instead of peers": (with_part(CountsMessagesInsteadOfPeers), 6),
    "ignore a lock": (with_part(IgnoresTheLock), 4),
    "use an old roster": (with_consensus(UsesAnOldRoster), 0),
    "reply before persisting": (with_consensus(RepliesBeforePersisting), 0),
    "accept an unsigned report": (with_consensus(AcceptsUnsignedReports), 12),
    "iterate in hash order": (with_part(IteratesInHashOrder), 0),
    "forget a lease": (with_timing(lease_seconds=0.5), 0),
    "count one's own sleep as their silence": (with_timing(stall_seconds=inf), 66),
    "break a promise": (with_part(BreaksItsPromise), 29),
    "believe any absence": (with_part(BelievesAnyAbsence), 20),
    "act before the majority": (with_consensus(ActsBeforeTheMajority), 0),
}
"""What is planted, and the everyday seed that catches it."""
