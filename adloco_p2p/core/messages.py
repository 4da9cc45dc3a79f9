"""What peers say to each other to stay acquainted and to agree, and what they write down on the way.

The shell proves who the SENDER of a message is. What is passed on by others (reports, join requests, farewells, proposals,
votes) carries the signature of its author as well. All values are frozen and have one canonical form.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt, MaxLen

from adloco_p2p.core import canonical
from adloco_p2p.core.types import MAX_ROSTER, Capacity, Count, Digest, PeerId, Report, RoundPlan

MAX_JOINS = 64
"""Newcomers that one plan admits."""
MAX_PASSED_ON = 16
"""Join requests, farewells, and lives that one heartbeat passes on, each."""
MAX_ENTRIES = 128
"""Ledger entries in one message."""
MAX_ENTRY_BYTES = 48 << 20
"""Canonical bytes of a ledger entry: more than the largest that can be valid, of 4,096 seats with 256 hosts of each of 64
instances."""
MAX_MESSAGE_BYTES = MAX_ENTRY_BYTES + (64 << 10)
"""Canonical bytes of any message: one that holds the largest entry."""
MAX_TRAIL = 80
"""Digests by which two peers find where their ledgers part."""

Signature = Annotated[str, MaxLen(1024)]
"""Hexadecimal."""
Sign = Callable[[bytes], str]
Verify = Callable[[PeerId, bytes, str], bool]


def payload(kind: str, *parts: object) -> bytes:
    """The bytes that are signed: what it is, then what it says."""
    return canonical.encode((kind, *parts))


# --- acquaintance ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A peer that is not on the roster asks to be; repeated with every heartbeat until it is."""

    peer: PeerId
    run: Digest
    capacity: Capacity
    beat: Count
    """The peer's heartbeat count; a request with a higher count replaces one with a lower."""
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("join", self.peer, self.run, self.capacity, self.beat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """`This is my newest life`: others may say that they heard of beats of this incarnation, and of no other."""

    peer: PeerId
    run: Digest
    incarnation: Count
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("life", self.peer, self.run, self.incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A peer goes, and means it. A higher beat of the same peer takes it back."""

    peer: PeerId
    run: Digest
    beat: Count
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("leave", self.peer, self.run, self.beat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of a peer's ledger."""

    round: Count
    digest: Digest
    samples: Count
    """Samples that the ledger proves, over all its rounds."""

    @property
    def rank(self) -> tuple[int, int, str]:
        """Of two histories the higher rank wins: more proven samples, then more rounds, then the digest."""
        return self.samples, self.round, self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """`I am alive, and this is whom I heard of.` Sent to a few peers per period, whatever the size of the swarm."""

    beat: Count
    roster: Digest
    """The plan whose roster gives the order of `heard`."""
    heard: Annotated[tuple[Count, ...], MaxLen(MAX_ROSTER)]
    """Highest beat known of every peer of that roster; 0 where none."""
    head: Head
    have: Annotated[int, Ge(0), Lt(1 << MAX_ROSTER)]
    """Whose reports for the next plan the sender holds: one bit per peer of the roster of their round, lowest first."""
    joins: Annotated[tuple[JoinRequest, ...], MaxLen(MAX_PASSED_ON)] = ()
    leaves: Annotated[tuple[Leave, ...], MaxLen(MAX_PASSED_ON)] = ()
    lives: Annotated[tuple[Life, ...], MaxLen(MAX_PASSED_ON)] = ()
    """Of members: the sender's own first, then such as it heard of lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """`Does the target live?` The target answers with a heartbeat; others ask it and pass the answer on."""

    target: PeerId
    is_relayed: bool


# --- one slot: the successor of one plan -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Ballot:
    """One attempt of one proposer to settle a slot. Attempt 0 belongs to the first peer of the slot's order alone."""

    attempt: Count
    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class SignedReport:
    report: Report
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("report", canonical.digest_once(self.report))


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Value:
    """What a plan is made from, and the plan that the rule makes of it."""

    round: Count
    """Of the resulting plan; the reports are of `round - 2`."""
    parent: Digest
    reports: Annotated[tuple[Digest, ...], MaxLen(MAX_ROSTER)]
    """Digests of signed reports, in the order of the reporters."""
    joined: Annotated[tuple[JoinRequest, ...], MaxLen(MAX_JOINS)]
    """Sorted by peer."""
    departed: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)]
    """Sorted."""
    plan: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """`Promise me to heed no lower ballot, and tell me what you accepted.` `absent` do not count in this ballot."""

    parent: Digest
    ballot: Ballot
    absent: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    parent: Digest
    ballot: Ballot
    accepted: tuple[Ballot, Digest] | None
    """The highest ballot whose value the sender accepted, and that value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a ballot got nothing from the sender: it promised a higher one, or it knows that `alive` are not absent."""

    parent: Digest
    ballot: Ballot
    promised: Ballot | None
    alive: Annotated[tuple[tuple[PeerId, Count], ...], MaxLen(MAX_ROSTER)]
    """Peers and the beats by which they are known to live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The value that the proposer asks everybody to accept, as it did itself."""

    ballot: Ballot
    absent: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)]
    value: Value
    signature: Signature

    @property
    def parent(self) -> Digest:
        return self.value.parent

    @property
    def payload(self) -> bytes:
        return payload("proposal", self.ballot, self.absent, canonical.digest_once(self.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """`I accepted this value in this ballot.` Acks of a majority choose the value; none of them is a vote yet."""

    parent: Digest
    ballot: Ballot
    value: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The proposer of a large swarm says that a majority accepted; small swarms hear the acks themselves."""

    parent: Digest
    ballot: Ballot
    value: Digest
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("chosen", self.parent, self.ballot, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """`The successor of this parent is this value.` A peer says so of one value per parent, in its whole life."""

    peer: PeerId
    parent: Digest
    ballot: Ballot
    absent: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)]
    value: Digest
    abstains: bool
    """The peer gave its vote to another value before a partition; it stands aside and is not counted."""
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("vote", self.peer, self.parent, self.ballot, self.absent, self.value, self.abstains)


@dataclass(frozen=True, slots=True, kw_only=True)
class CastVote:
    """One vote of a certificate: what differs from voter to voter."""

    peer: PeerId
    abstains: bool
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The votes that made a value final: more than half of the roster without `absent` and without those who abstain."""

    ballot: Ballot
    absent: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)]
    votes: Annotated[tuple[CastVote, ...], MaxLen(MAX_ROSTER)]
    """Sorted by peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """The proposer of a large swarm passes on the certificate; small swarms hear the votes themselves."""

    parent: Digest
    value: Digest
    certificate: Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """`Give me what I lack in this slot`: a value, reports by digest, reports by peer."""

    parent: Digest
    value: Digest | None = None
    reports: Annotated[tuple[Digest, ...], MaxLen(MAX_ROSTER)] = ()
    reporters: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Reports as they come in, or the answer to a `Pull`."""

    parent: Digest
    value: Value | None = None
    reports: Annotated[tuple[SignedReport, ...], MaxLen(MAX_ROSTER)] = ()


# --- the ledger ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class LedgerEntry:
    """One plan, everything it was made from, and the votes that made it final."""

    plan: RoundPlan
    value: Value
    reports: Annotated[tuple[SignedReport, ...], MaxLen(MAX_ROSTER)]
    """In the order of `value.reports`."""
    certificate: Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class PullEntries:
    """`Give me what follows the first of these that you have.` Newest first, thinning out towards the first plan."""

    trail: Annotated[tuple[Digest, ...], MaxLen(MAX_TRAIL)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    entries: Annotated[tuple[LedgerEntry, ...], MaxLen(MAX_ENTRIES)]


SlotMessage = Prepare | Promise | Refusal | Proposal | Ack | Chosen | Vote | Final | Pull | Supply
Message = Heartbeat | Probe | Leave | SlotMessage | PullEntries | Entries


# --- what is written down before it is said --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """How often this peer has been started; its beats begin above all earlier ones."""

    number: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    parent: Digest
    ballot: Ballot


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """With the reports, so that the value can be proposed again when nobody else has them."""

    ballot: Ballot
    value: Value
    reports: Annotated[tuple[SignedReport, ...], MaxLen(MAX_ROSTER)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted:
    parent: Digest
    value: Digest


JournalRecord = Incarnation | Promised | Accepted | Voted | LedgerEntry
