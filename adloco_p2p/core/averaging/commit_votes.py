"""The commit votes of one instance's round: which averages the hosts made, and whether one of them has a majority.

A vote is signed and binds the plan, round, instance, attempt, contributors and digest, so it may travel by any path. A host
votes only for an average that it took part in making, not for one that it fetched. The majority is that of the planned voters,
alive or not: there is at most one, unless a voter signs two votes, and then none of its votes counts. Beside full members the
votes of members on probation are passed on and not counted (`deciding_hosts` in `core/model/electorate.py`).

A vote outlives the process that cast it, the average does not. So a message with a vote also states whether its sender can
serve the average; an average that a majority voted for is lost once none of its living voters holds it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from adloco_p2p.core.model.donors import in_turn
from adloco_p2p.core.model.effects import Effect
from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.ledger_entry import Sign, Verify
from adloco_p2p.core.model.messages import AverageDigest
from adloco_p2p.core.model.scalars import Digest, PeerId

Choice = tuple[int, Digest, tuple[PeerId, ...]]
"""An average: the attempt that gave it, its digest and its contributors."""


def choice_of(vote: AverageDigest) -> Choice:
    return vote.attempt, vote.digest, vote.contributors


@dataclass(frozen=True, slots=True)
class CommitTally:
    """The count of the commit votes that one host has."""

    votes: Mapping[PeerId, AverageDigest]
    num_voters: int
    """The number of planned voters."""
    num_open: int
    """The number of planned voters whose votes have not arrived here and still may."""

    @property
    def majority(self) -> Choice | None:
        return next((choice for choice in self._choices() if is_majority(len(self.holders(choice)), self.num_voters)), None)

    @property
    def is_hopeless(self) -> bool:
        """Whether no average can get a majority any more."""
        most = max((len(self.holders(choice)) for choice in self._choices()), default=0)
        return not is_majority(most + self.num_open, self.num_voters)

    def _choices(self) -> list[Choice]:
        return sorted({choice_of(vote) for vote in self.votes.values() if not vote.is_void})

    def holders(self, choice: Choice) -> list[PeerId]:
        return [peer for peer, vote in self.votes.items() if choice_of(vote) == choice]


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """The means by which one host votes in one round: in its own name, and only once, whatever restarts there are."""

    sign: Sign
    verify: Verify
    keep: Callable[[AverageDigest], Sequence[Effect]]
    """Returns the effects that persist a vote."""
    kept: AverageDigest | None
    """The vote that was persisted before a restart."""


class CommitVotes:
    """The first vote that came of each contributor. Hosts in client mode cannot reach each other, so a host that both reach
    relays their votes."""

    def __init__(
        self,
        *,
        me: PeerId,
        plan_digest: Digest,
        hosts: Collection[PeerId],
        contributors: Sequence[PeerId],
        deciding: Collection[PeerId],
        clients: Collection[PeerId],
        voter: Voter,
    ) -> None:
        """`deciding`: the contributors whose votes count."""
        if set(hosts) == {me}:  # nobody else counts its vote, so after a restart a lone host makes its average again
            voter = replace(voter, kept=None, keep=lambda _vote: ())
        self._me = me
        self._plan_digest = plan_digest
        self._contributors = tuple(contributors)
        self._deciding = frozenset(deciding)
        self._clients = frozenset(clients)
        self._voter = voter
        self._votes: dict[PeerId, AverageDigest] = {me: voter.kept} if voter.kept is not None else {}
        self._direct: dict[PeerId, None] = {}
        """Voters that sent their vote here themselves."""
        self.held: Choice | None = None
        """The average that this host holds."""
        self._holders: dict[PeerId, Choice | None] = {}
        """The average that each host which sent a vote can serve, as it states."""
        self._equivocators: dict[PeerId, None] = {}

    @property
    def have_own(self) -> bool:
        return self._me in self._votes

    @property
    def own(self) -> AverageDigest:
        """This host's vote, with the equal votes of hosts in client mode as backers; only after `cast`."""
        own = self._votes[self._me]
        backers = self._backers(own, [peer for peer in self._clients if peer in self._direct])
        return replace(own, is_held=self._is_held(own), backers=backers)

    def _is_held(self, vote: AverageDigest) -> bool:
        return vote.is_void or choice_of(vote) == self.held

    def answer(self, applied: Choice | None) -> AverageDigest | None:
        """Return the answer to a host that asks: the votes for the average that was applied here, which prove that it is
        committed, whether or not this host's own is among them. If none was applied, it is this host's own vote, or else the
        void votes held here, whose authors may be gone."""
        own, votes = self._votes.get(self._me), self._countable.values()
        vote = next((vote for vote in votes if choice_of(vote) == applied), own) or next((v for v in votes if v.is_void), None)
        if vote is None:
            return None
        signature = own.signature if own is not None and choice_of(own) == choice_of(vote) else ""
        backers = self._backers(vote, self._contributors)
        return replace(vote, signature=signature, is_answer=True, is_held=self._is_held(vote), backers=backers)

    def passed_on(self, voter: PeerId) -> AverageDigest:
        """Return the held vote of this contributor for a host that may lack it; its signature proves it."""
        vote = self._votes[voter]
        return replace(vote, signature="", is_held=self._is_held(vote), backers=((voter, vote.signature),))

    def _backers(self, own: AverageDigest, peers: Collection[PeerId]) -> tuple[tuple[PeerId, str], ...]:
        votes = self._countable
        same = [peer for peer in self._contributors if peer in peers and peer != self._me and peer in votes]
        return tuple((peer, votes[peer].signature) for peer in same if choice_of(votes[peer]) == choice_of(own))

    def cast(self, vote: AverageDigest) -> list[Effect]:
        """Sign this host's vote, and return the effects that persist it, to be performed before the vote is sent."""
        assert not self.have_own, "one vote per round"
        signed = replace(vote, signature=self._voter.sign(vote.payload(self._plan_digest, self._me)))
        self._votes[self._me] = signed
        return list(self._voter.keep(signed))

    def received(self, sender: PeerId, vote: AverageDigest) -> list[PeerId]:
        """Take the sender's vote, and those that it passes on up to the first with a wrong signature. Among them may be one
        that this host cast before a restart. Return the voters that turn out to have signed two votes."""
        found: list[PeerId] = []
        if not vote.is_void:
            self._holders[sender] = choice_of(vote) if vote.is_held else None
        for voter, signature in ((sender, vote.signature), *vote.backers):
            if voter not in self._contributors or not signature or (voter == self._me and self.have_own):
                continue
            known = self._votes.get(voter)
            if known is None or known.signature != signature or choice_of(known) != choice_of(vote):
                one = replace(vote, signature=signature, backers=(), is_answer=False, is_held=True)
                is_maker = vote.is_void or voter in vote.contributors
                if not is_maker or not self._voter.verify(voter, one.payload(self._plan_digest, voter), signature):
                    break
                if known is not None and choice_of(known) != choice_of(one) and voter not in self._equivocators:
                    self._equivocators[voter] = None
                    found.append(voter)
                self._votes.setdefault(voter, one)
            if voter == sender:
                self._direct[voter] = None
        return found

    @property
    def _countable(self) -> dict[PeerId, AverageDigest]:
        return {peer: vote for peer, vote in self._votes.items() if peer not in self._equivocators}

    @property
    def voters(self) -> tuple[PeerId, ...]:
        """The contributors whose votes are held here."""
        return tuple(peer for peer in self._contributors if peer in self._votes)

    def vote_of(self, peer: PeerId) -> AverageDigest | None:
        return self._votes.get(peer)

    def to_relay(self, voter: PeerId) -> frozenset[PeerId]:
        """Return the hosts that this voter cannot reach because both are in client mode; empty unless it voted as this host."""
        if voter not in self._clients or not self.have_own or voter not in dict(self.own.backers):
            return frozenset()
        return self._clients - {voter, self._me}

    def tally(self, absent: Collection[PeerId]) -> CommitTally:
        """Count the votes. `absent` are contributors that will no longer vote."""
        votes = {peer: vote for peer, vote in self._countable.items() if peer in self._deciding}
        num_open = len(self._deciding - self._votes.keys() - {*absent})
        return CommitTally(votes=votes, num_voters=len(self._deciding), num_open=num_open)

    def donors(self, choice: Choice) -> list[PeerId]:
        """Return the other hosts that can serve the average, in the order in which they are asked: those first whose votes
        for it count, because anybody can state that it holds one."""
        made = {peer for peer, vote in self._countable.items() if peer in self._deciding and choice_of(vote) == choice}
        offering = [peer for peer, held in self._holders.items() if held == choice]
        return [*in_turn(offering, choice[1], self._me, first=made)]

    def is_lost(self, choice: Choice, absent: Collection[PeerId]) -> bool:
        """Return whether all present voters for the average, at least one, state that they no longer hold it, and no other
        present host offers it."""
        holders = {**self._holders, self._me: self.held}
        there = [peer for peer, vote in self._votes.items() if choice_of(vote) == choice and peer not in absent]
        is_offered = any(held == choice for peer, held in holders.items() if peer not in absent)
        return bool(there) and not is_offered and all(peer in holders for peer in there)
