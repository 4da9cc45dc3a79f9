"""Which average each host of one instance's round holds, by what was said, and which of them counts."""

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
    """The votes of those that are there to vote."""

    votes: Mapping[PeerId, AverageDigest]
    num_electors: int
    """Who could vote, whether they have or not."""

    @property
    def is_complete(self) -> bool:
        return len(self.votes) == self.num_electors

    @property
    def ranking(self) -> list[Choice]:
        """The average of most hosts first."""
        return sorted({choice_of(vote) for vote in self.votes.values()}, key=lambda choice: (-self.size(choice), choice))

    @property
    def majority(self) -> Choice | None:
        return next((choice for choice in self.ranking if 2 * len(self.holders(choice)) > self.num_electors), None)

    def holders(self, choice: Choice) -> list[PeerId]:
        return [peer for peer, vote in self.votes.items() if choice_of(vote) == choice]

    def size(self, choice: Choice) -> int:
        """Hosts whose pseudo-gradients are in it."""
        return max(len(self.votes[peer].contributors) for peer in self.holders(choice))

    def is_of_half(self, choice: Choice) -> bool:
        """Half of the electors had a part in it, or hold it."""
        return 2 * max(self.size(choice), len(self.holders(choice))) >= self.num_electors


class CommitVotes:
    """One vote a contributor. Hosts in client mode hear nothing from each other: what one of them votes for, the others hear
    from a host that both hear, and believe it; nobody else counts a vote at second hand."""

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
        """What this host says; only if it has voted. It names the hosts in client mode that have said the same."""
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
        """By itself: only who said so to this host can give it the average."""
        return self._direct.get(peer)

    def to_relay(self, voter: PeerId) -> frozenset[PeerId]:
        """Who does not hear this voter itself: it is in client mode, like them, and has voted as this host did."""
        if not self.have_own or voter not in self.own.relayed_for:
            return frozenset()
        return self._clients - {voter, self._me}

    def tally(self, absent: Collection[PeerId]) -> CommitTally:
        """`absent`: contributors for whose votes nobody waits."""
        known = self._relayed | self._direct
        electors = [peer for peer in self._contributors if peer == self._me or peer not in absent]
        return CommitTally(votes={peer: known[peer] for peer in electors if peer in known}, num_electors=len(electors))
