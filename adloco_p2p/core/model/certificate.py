"""The votes that make a plan final, also as proof that members agreed on a history that lost, and how many."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen

from adloco_p2p.core.model.scalars import MAX_ROSTER, Count, HexDigest, PeerId


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Ballot:
    """One attempt of one proposer to settle a slot. Attempt 0 belongs to the first peer of the slot's order alone."""

    attempt: Count
    peer: PeerId


Signature = Annotated[str, MaxLen(1024)]
"""A signature in hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CastVote:
    """One vote of a certificate, reduced to the fields that differ between voters."""

    peer: PeerId
    abstains: bool
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The votes that made a value final: those of more than half of the electors, not counting `absent` and those who
    abstain."""

    ballot: Ballot
    absent: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)]
    votes: Annotated[tuple[CastVote, ...], MaxLen(MAX_ROSTER)]
    """Votes sorted by peer."""

    @property
    def voters(self) -> frozenset[PeerId]:
        """The peers that voted for the value."""
        return frozenset(cast.peer for cast in self.votes if not cast.abstains)


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class BranchProof:
    """Proof that members of the last common plan agreed on the first value of a lost history."""

    branch: HexDigest
    """Digest of that value."""
    certificate: Certificate
