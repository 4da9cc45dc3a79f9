"""What a peer knows of one slot: the successor of one plan."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from adloco_p2p.core.model.electorate import electorate, electors, is_majority
from adloco_p2p.core.model.ledger_entry import Ballot, CastVote, Certificate, Value, Vote
from adloco_p2p.core.model.messages import Ack, Chosen, Promise, Proposal
from adloco_p2p.core.model.types import Digest, PeerId, RoundPlan, roster_of


@dataclass(slots=True, kw_only=True)
class Slot:
    """Mutable; `Consensus` owns it. What must survive a crash is `promised`, `accepted` and `voted`."""

    parent: RoundPlan
    digest: Digest
    roster: tuple[PeerId, ...]
    electorate: tuple[PeerId, ...]
    """The members of the roster that decide."""
    order: tuple[PeerId, ...]
    """Proposers, by hash; those of the electorate first."""
    promised: Ballot | None = None
    accepted: tuple[Ballot, Digest] | None = None
    voted: Digest | None = None
    values: dict[Digest, Value] = field(default_factory=dict)
    plans: dict[Digest, RoundPlan | str] = field(default_factory=dict)
    """Of checked values; a text says what is wrong."""
    sources: dict[Digest, PeerId] = field(default_factory=dict)
    """Who can supply what a value lacks."""
    proposals: dict[PeerId, tuple[Proposal, Digest]] = field(default_factory=dict)
    """The highest of each proposer, with the digest of its value."""
    refused: dict[PeerId, Ballot] = field(default_factory=dict)
    """Of each proposer the highest ballot that leaves out a peer which lives for us."""
    acks: dict[PeerId, Ack] = field(default_factory=dict)
    chosen: dict[PeerId, Chosen] = field(default_factory=dict)
    votes: dict[PeerId, Vote] = field(default_factory=dict)
    finals: dict[Digest, Certificate] = field(default_factory=dict)
    overtaken: dict[PeerId, int] = field(default_factory=dict)
    """How often each proposer took more than its turn: its ballot came while one was under way, or after its own."""
    ballot: Ballot | None = None
    """Our own attempt."""
    absent: tuple[PeerId, ...] = ()
    promises: dict[PeerId, Promise] = field(default_factory=dict)
    has_proposed: bool = False
    first_at: float | None = None
    """When the first report was there that is waited for, ..."""
    majority_at: float | None = None
    """... those of a majority, ..."""
    ready_at: float | None = None
    """... and enough to propose a value."""
    active_at: float | None = None
    """When a ballot was last begun or heard of."""
    ballot_timeout_seconds: float = 0.0
    """How long that ballot gets."""
    empty_since: float | None = None
    """Since when nobody of the roster lives, as seen by a peer that is not on it."""

    def counted(self, absent: Sequence[PeerId]) -> list[PeerId]:
        """Those who count in a ballot."""
        return electors(self.electorate, self.roster, absent)

    def named(self) -> frozenset[Digest]:
        """Values that somebody stands for: of each member its highest proposal, vote and acceptance, and what is final."""
        return frozenset(
            [
                *(digest for _, digest in self.proposals.values()),
                *(vote.value for vote in self.votes.values()),
                *(chosen.value for chosen in self.chosen.values()),
                *(promise.accepted[1] for promise in self.promises.values() if promise.accepted is not None),
                *([self.accepted[1]] if self.accepted is not None else []),
                *self.finals,
            ]
        )

    def keep(self, value: Value, digest: Digest, source: PeerId) -> None:
        """Remember a value, and of the others those that somebody stands for: a few per member of the roster."""
        named = self.named()
        for other in [other for other in self.values if other not in named]:
            del self.values[other]
            self.plans.pop(other, None)
        self.sources = {other: peer for other, peer in self.sources.items() if other in named}
        self.values.setdefault(digest, value)
        self.sources[digest] = source

    def ranked_proposals(self) -> list[tuple[Proposal, Digest]]:
        """Highest ballot first."""
        return sorted(self.proposals.values(), key=lambda known: known[0].ballot, reverse=True)

    def certificates(self) -> dict[Digest, Certificate]:
        """Values that the votes, or somebody's certificate, make final."""
        found = dict(self.finals)
        groups: dict[tuple[Ballot, Digest, tuple[PeerId, ...]], list[Vote]] = {}
        for _, vote in sorted(self.votes.items()):
            groups.setdefault((vote.ballot, vote.value, vote.absent), []).append(vote)
        for (ballot, digest, absent), votes in sorted(groups.items()):
            counted = frozenset(self.counted(absent))
            casts = tuple(
                CastVote(peer=vote.peer, abstains=vote.abstains, signature=vote.signature)
                for vote in votes
                if vote.peer in counted
            )
            abstained = sum(cast.abstains for cast in casts)
            if is_majority(len(casts) - abstained, len(counted) - abstained):
                found[digest] = Certificate(ballot=ballot, absent=absent, votes=casts)
        return found


def slot_after(parent: RoundPlan, digest: Digest) -> Slot:
    roster = roster_of(parent)
    deciding = electorate(parent)
    order = sorted(roster, key=lambda peer: (peer not in deciding, hashlib.sha256(f"{digest}:{peer}".encode("ascii")).digest()))
    return Slot(parent=parent, digest=digest, roster=roster, electorate=deciding, order=tuple(order))
