"""The learner of single-decree Paxos: the proposals, acks and votes of a slot, and what they prove.

A value that a majority acked in one ballot is CHOSEN; one that a majority voted for is FINAL, and those votes are its
certificate. The learner sends nothing, and keeps only the messages of the highest ballot of each member.
"""

from collections.abc import Iterator

from adloco_p2p.core.agreement.slot import Context, Slot
from adloco_p2p.core.ledger.certificates import check_certificate
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot, CastVote, Certificate
from adloco_p2p.core.model.electorate import is_emergency, is_majority
from adloco_p2p.core.model.ledger_entry import Vote
from adloco_p2p.core.model.messages import Ack, Chosen, Final, Proposal
from adloco_p2p.core.model.scalars import Digest, PeerId


class Learner:
    """The messages of one slot that this peer has received. `on_` methods check a message and return whether it was news;
    `note_` methods take this peer's own messages."""

    def __init__(self, context: Context, slot: Slot) -> None:
        self._context = context
        self._slot = slot
        self._proposals: dict[PeerId, tuple[Proposal, Digest]] = {}
        """The highest proposal of each proposer, with the digest of its value."""
        self._acks: dict[PeerId, Ack] = {}
        self._chosen: dict[PeerId, Chosen] = {}
        self._votes: dict[PeerId, Vote] = {}
        self._finals: dict[Digest, Certificate] = {}
        """Received certificates with the votes of a majority of all electors."""
        self._emergencies: dict[PeerId, tuple[Digest, Certificate]] = {}
        """The last emergency certificate that each member passed on. Only one is kept, because one member alone can make any
        number of them, in which all others are absent."""

    # --- what members send -------------------------------------------------------------------------------------------

    def on_proposal(self, message: Proposal) -> bool:
        """Note a proposal, which counts as its proposer's ack, too."""
        slot, proposer = self._slot, message.ballot.peer
        known = self._proposals.get(proposer)
        if known is not None and known[0].ballot >= message.ballot:
            return False
        if proposer not in slot.counted(message.absent) or (message.ballot.attempt == 0 and proposer != slot.order[0]):
            return False
        if not self._context.verify(proposer, message.payload, message.signature):
            return False
        digest = canonical.digest_once(message.value)
        self.note_proposal(message, digest)
        self.on_ack(proposer, Ack(parent=slot.digest, ballot=message.ballot, value=digest))
        return True

    def on_ack(self, sender: PeerId, message: Ack) -> bool:
        known = self._acks.get(sender)
        if known is not None and known.ballot >= message.ballot:
            return False
        self.note_ack(sender, message)
        return True

    def on_chosen(self, message: Chosen) -> bool:
        proposer = message.ballot.peer
        known = self._chosen.get(proposer)
        if proposer not in self._slot.members or (known is not None and known.ballot >= message.ballot):
            return False
        if not self._context.verify(proposer, message.payload, message.signature):
            return False
        self.note_chosen(proposer, message)
        return True

    def on_vote(self, message: Vote) -> bool:
        known = self._votes.get(message.peer)
        if message.peer not in self._slot.members or (known is not None and known.ballot >= message.ballot):
            return False
        if not self._context.verify(message.peer, message.payload, message.signature):
            return False
        self.note_vote(message)
        return True

    def on_final(self, sender: PeerId, message: Final) -> bool:
        if message.value in self._finals or self._emergencies.get(sender, ("",))[0] == message.value:
            return False
        wrong = check_certificate(
            message.certificate,
            value=message.value,
            parent=self._slot.parent,
            parent_digest=self._slot.digest,
            verify=self._context.verify,
        )
        if wrong:
            return False
        if is_emergency(message.certificate, self._slot.parent):
            self._emergencies[sender] = message.value, message.certificate
        else:
            self._finals[message.value] = message.certificate
        return True

    # --- this peer's own ---------------------------------------------------------------------------------------------

    def note_proposal(self, proposal: Proposal, digest: Digest) -> None:
        self._proposals[proposal.ballot.peer] = (proposal, digest)

    def note_ack(self, peer: PeerId, ack: Ack) -> None:
        self._acks[peer] = ack

    def note_chosen(self, peer: PeerId, chosen: Chosen) -> None:
        self._chosen[peer] = chosen

    def note_vote(self, vote: Vote) -> None:
        self._votes[vote.peer] = vote

    # --- what follows from it ----------------------------------------------------------------------------------------

    def vote_of(self, peer: PeerId) -> Vote | None:
        return self._votes.get(peer)

    def named(self) -> Iterator[Digest]:
        """Yield the values that a member stands for by a proposal, a vote or an announced choice, and the final values."""
        yield from (digest for _, digest in self._proposals.values())
        yield from (vote.value for vote in self._votes.values())
        yield from (chosen.value for chosen in self._chosen.values())
        yield from (value for value, _ in self._emergencies.values())
        yield from self._finals

    def ranked_proposals(self) -> list[tuple[Proposal, Digest]]:
        """Return the proposals and the digests of their values, highest ballot first."""
        return sorted(self._proposals.values(), key=lambda known: known[0].ballot, reverse=True)

    def chosen_proposals(self) -> list[tuple[Proposal, Digest]]:
        """Return the proposals that a majority acked, or whose proposer announced that, highest ballot first."""
        found = []
        for proposal, digest in self.ranked_proposals():
            chosen = self._chosen.get(proposal.ballot.peer)
            is_announced = chosen is not None and (chosen.ballot, chosen.value) == (proposal.ballot, digest)
            if is_announced or self.is_acked_by_majority(proposal, digest):
                found.append((proposal, digest))
        return found

    def is_acked_by_majority(self, proposal: Proposal, digest: Digest) -> bool:
        """Return whether a majority of the members that count in its ballot acked the proposal, by the acks received here."""
        backers = [peer for peer, ack in self._acks.items() if (ack.ballot, ack.value) == (proposal.ballot, digest)]
        return self._slot.is_quorum(backers, proposal.absent)

    def is_backed_by_half(self, proposal: Proposal, digest: Digest) -> bool:
        """Return whether half of the members that count in its ballot acked the proposal."""
        counted = self._slot.counted(proposal.absent)
        acks = [self._acks.get(peer) for peer in counted]
        backers = [ack for ack in acks if ack is not None and (ack.ballot, ack.value) == (proposal.ballot, digest)]
        return 2 * len(backers) >= len(counted)

    def certificates(self) -> dict[Digest, Certificate]:
        """Return the values that the votes or a received certificate make final, each with its strongest certificate. Strength
        matters, because one member alone can certify any value with all others absent."""
        found: dict[Digest, Certificate] = {}
        if not (self._emergencies or self._finals or self._votes):
            return found  # nothing is final yet, as after most messages
        for digest, certificate in (*self._emergencies.values(), *self._finals.items(), *self._certified_by_votes()):
            known = found.get(digest)
            if known is None or _strength(certificate) >= _strength(known):
                found[digest] = certificate
        return found

    def _certified_by_votes(self) -> Iterator[tuple[Digest, Certificate]]:
        groups: dict[tuple[Ballot, Digest, tuple[PeerId, ...]], list[Vote]] = {}
        for _, vote in sorted(self._votes.items()):
            groups.setdefault((vote.ballot, vote.value, vote.absent), []).append(vote)
        for (ballot, digest, absent), votes in sorted(groups.items()):
            counted = self._slot.counted(absent)
            counting = [vote for vote in votes if vote.peer in counted]
            abstained = sum(vote.abstains for vote in counting)
            if is_majority(len(counting) - abstained, len(counted) - abstained):
                casts = [CastVote(peer=vote.peer, abstains=vote.abstains, signature=vote.signature) for vote in counting]
                yield digest, Certificate(ballot=ballot, absent=absent, votes=tuple(casts))


def _strength(certificate: Certificate) -> tuple[int, int]:
    """Return the sort key of certificates: more votes are stronger, then fewer absent members."""
    return sum(not cast.abstains for cast in certificate.votes), -len(certificate.absent)
