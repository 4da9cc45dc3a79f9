"""The commit votes of one instance's round: which average each host holds, and which of them to have."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from adloco_p2p.core.model.messages import AverageDigest
from adloco_p2p.core.model.types import Digest, PeerId

Choice = tuple[int, Digest]
"""An average: the attempt that gave it, and its digest."""


def choice_of(vote: AverageDigest) -> Choice:
    return vote.attempt, vote.digest


@dataclass(frozen=True, slots=True)
class CommitTally:
    """The commit votes of those hosts whose votes are awaited."""

    votes: Mapping[PeerId, AverageDigest]
    num_electors: int
    """Hosts whose votes are awaited, whether they have voted or not."""

    @property
    def is_complete(self) -> bool:
        return len(self.votes) == self.num_electors

    @property
    def ranking(self) -> list[Choice]:
        """The average of most hosts first."""
        return sorted({choice_of(vote) for vote in self.votes.values()}, key=lambda choice: (-self.size(choice), choice))

    @property
    def first(self) -> Choice | None:
        return next(iter(self.ranking), None)

    @property
    def majority(self) -> Choice | None:
        return next((choice for choice in self.ranking if 2 * len(self.holders(choice)) > self.num_electors), None)

    def holders(self, choice: Choice) -> list[PeerId]:
        return [peer for peer, vote in self.votes.items() if choice_of(vote) == choice]

    def size(self, choice: Choice) -> int:
        """Hosts whose pseudo-gradients are in it."""
        return max(len(self.votes[peer].contributors) for peer in self.holders(choice))

    def is_of_half(self, choice: Choice) -> bool:
        """Half of the electors contributed to it, or hold it."""
        return 2 * max(self.size(choice), len(self.holders(choice))) >= self.num_electors

    # --- the average to have: the majority's; without one, the first where waiting would give none ---------------------

    def choice_of_holder(self) -> Choice | None:
        """For a host that holds an average itself."""
        return self.majority or (self.first if self.is_complete else None)

    def choice_of_member(self, others: Sequence[PeerId]) -> Choice | None:
        """For a host whose attempt runs; `others` are the other members."""
        is_last = bool(others) and all(peer in self.votes for peer in others)
        return self.majority or (self.first if is_last else None)

    def choice_of_waiting(self, *, is_alone: bool, failed_donors: Collection[PeerId]) -> Choice | None:
        """For a host that holds nothing and waits for the next attempt. A repair is cheaper than that attempt; but an average
        with few contributors and few holders counts only for a host with which no other remains (`is_alone`)."""
        worthwhile = (choice for choice in self.ranking if is_alone or self.is_of_half(choice))
        available = (choice for choice in worthwhile if any(peer not in failed_donors for peer in self.holders(choice)))
        return self.majority or next(available, None)


class CommitVotes:
    """One vote per contributor. Hosts in client mode cannot reach each other: each counts the votes of the others as relayed
    by a host that both reach. No other host counts relayed votes."""

    def __init__(self, *, me: PeerId, contributors: Sequence[PeerId], clients: Collection[PeerId]) -> None:
        self._me = me
        self._contributors = tuple(contributors)
        self._clients = frozenset(clients)
        self._direct: dict[PeerId, AverageDigest] = {}
        self._relayed: dict[PeerId, AverageDigest] = {}

    @property
    def have_own(self) -> bool:
        return self._me in self._direct

    @property
    def own(self) -> AverageDigest:
        """This host's vote; only after `cast`. It names the hosts in client mode that have cast the same."""
        own = self._direct[self._me]
        voters = [peer for peer in self._contributors if peer in self._clients and peer in self._direct]
        return replace(own, relayed_for=tuple(peer for peer in voters if choice_of(self._direct[peer]) == choice_of(own)))

    def cast(self, vote: AverageDigest) -> None:
        self._direct[self._me] = vote

    def received(self, voter: PeerId, vote: AverageDigest) -> None:
        self._direct[voter] = vote
        if self._me in self._clients:
            others = self._clients - {self._me}
            self._relayed.update((peer, vote) for peer in vote.relayed_for if peer in others)

    def direct_vote_of(self, peer: PeerId) -> AverageDigest | None:
        """The vote that the host itself sent here, if any: only such a host can give this one its average."""
        return self._direct.get(peer)

    def to_relay(self, voter: PeerId) -> frozenset[PeerId]:
        """Hosts that this voter cannot reach: they are in client mode, as it is. Empty unless it voted as this host did."""
        if not self.have_own or voter not in self.own.relayed_for:
            return frozenset()
        return self._clients - {voter, self._me}

    def tally(self, absent: Collection[PeerId]) -> CommitTally:
        """`absent`: contributors whose votes are not awaited."""
        known = self._relayed | self._direct
        electors = [peer for peer in self._contributors if peer == self._me or peer not in absent]
        return CommitTally(votes={peer: known[peer] for peer in electors if peer in known}, num_electors=len(electors))

    def donors(self, tally: CommitTally, choice: Choice) -> list[PeerId]:
        """Other hosts that can give this one the average."""
        return [peer for peer in tally.holders(choice) if peer in self._direct and peer != self._me]
