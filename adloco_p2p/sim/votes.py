"""The rules on which votes count, implemented a second time for the checkers."""

from collections.abc import Collection

from adloco_p2p.core.model.certificate import Certificate
from adloco_p2p.core.model.ledger_entry import Verify, Vote
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import Digest, PeerId


def electors_of(plan: RoundPlan) -> list[PeerId]:
    """Return the electors of the successor: founders and members past their probation, if they reported one of the last four
    rounds. Keepers are electors only if there is nobody else."""
    seats = [seat for seat in plan.roster if not seat.capacity.is_keeper] or plan.roster
    last_round = {
        roster_entry.peer: roster_entry.joined_round - 1 if roster_entry.last_report is None else roster_entry.last_report
        for roster_entry in seats
    }
    lately = [roster_entry for roster_entry in seats if plan.round - 2 - last_round[roster_entry.peer] < 4]
    old = [
        roster_entry.peer
        for roster_entry in lately
        if roster_entry.joined_round == 0 or (roster_entry.last_report is not None and roster_entry.probation == 0)
    ]
    reporting = [roster_entry.peer for roster_entry in lately if roster_entry.last_report is not None]
    return old or reporting or [roster_entry.peer for roster_entry in seats]


def counted_of(parent: RoundPlan, certificate: Certificate) -> list[PeerId]:
    """Return the members that decide on the successor of the parent, without those that the certificate calls absent; if none
    of them is left, the other members."""
    members = [roster_entry.peer for roster_entry in parent.roster if roster_entry.peer not in certificate.absent]
    return [peer for peer in electors_of(parent) if peer in members] or members


def votes_in(certificate: Certificate, about: tuple[Digest, Digest]) -> list[Vote]:
    """Return the votes as their voters signed them. `about` is the parent and the value."""
    parent, value = about
    return [
        Vote(
            peer=cast.peer,
            parent=parent,
            ballot=certificate.ballot,
            absent=certificate.absent,
            value=value,
            abstains=cast.abstains,
            signature=cast.signature,
        )
        for cast in certificate.votes
    ]


def votes_of(
    certificate: Certificate, *, about: tuple[Digest, Digest], counted: Collection[PeerId], verify: Verify
) -> tuple[frozenset[PeerId], frozenset[PeerId]]:
    """Return the peers among `counted` that voted for the value, and those that abstained. `about` is the parent and the
    value."""
    voters = frozenset(counted)
    votes: set[PeerId] = set()
    abstained: set[PeerId] = set()
    for vote in votes_in(certificate, about):
        if vote.peer in voters and verify(vote.peer, vote.payload, vote.signature):
            (abstained if vote.abstains else votes).add(vote.peer)
    return frozenset(votes), frozenset(abstained)
