"""The messages of membership, consensus and averaging, and the journal records that precede them.

The shell proves who the SENDER of a message is. Content that others pass on (reports, join requests, leaves, proposals,
votes) carries the signature of its author as well. All values are frozen and have one canonical form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

from annotated_types import Ge, Lt, MaxLen

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot, Certificate, Signature
from adloco_p2p.core.model.ledger_entry import (
    MAX_ENTRIES,
    MAX_STATEMENTS,
    Decree,
    Head,
    JoinRequest,
    LedgerEntry,
    SignedReport,
    Value,
    Vote,
    payload,
)
from adloco_p2p.core.model.scalars import MAX_HOSTS, MAX_ROSTER, Count, Digest, HexDigest, InstanceId, PeerId, PositiveCount

MAX_HEARD = 128
"""Beats that one heartbeat passes on: leases are longer in a swarm of more peers, since news takes longer there."""
MAX_PASSED_ON = 16
"""Join requests, leaves, and incarnations that one heartbeat passes on, each."""
MAX_ENTRY_BYTES = 48 << 20
"""Canonical bytes of a ledger entry: more than the largest that can be valid, of 4,096 seats with 256 hosts of each of 64
instances."""
MAX_MESSAGE_BYTES = MAX_ENTRY_BYTES + (64 << 10)
"""Canonical bytes of any message: one that holds the largest entry."""
MAX_LOCATOR = 80
"""Digests by which two peers find where their ledgers part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A peer's announcement of its newest incarnation: others may report beats of this one, and of no other."""

    peer: PeerId
    run: Digest
    incarnation: Count
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("life", self.peer, self.run, self.incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A peer's announcement that it leaves. A higher beat of the same peer takes it back."""

    peer: PeerId
    run: Digest
    beat: Count
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("leave", self.peer, self.run, self.beat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A peer's sign of life, with the beats that it has learned. Sent to a few peers per period, of the same size in any large
    swarm."""

    beat: Count
    roster: Digest
    """The plan whose roster gives the order of `heard`."""
    heard: Annotated[tuple[Count, ...], MaxLen(MAX_HEARD)]
    """Highest beat learned of each peer of that roster, 0 where none; of a large one, of those in a row that was drawn, ..."""
    head: Head
    have: Annotated[int, Ge(0), Lt(1 << MAX_ROSTER)]
    """The peers whose reports for the next plan the sender holds: one bit per peer of the roster of their round, lowest
    first."""
    heard_from: Annotated[int, Ge(0), Lt(MAX_ROSTER)] = 0
    """... which begins at this place and goes on at the first one after the last."""
    joins: Annotated[tuple[JoinRequest, ...], MaxLen(MAX_PASSED_ON)] = ()
    leaves: Annotated[tuple[Leave, ...], MaxLen(MAX_PASSED_ON)] = ()
    lives: Annotated[tuple[Life, ...], MaxLen(MAX_PASSED_ON)] = ()
    """Of members: the sender's own first, then those that it learned lately."""
    statements: Annotated[tuple[Decree, ...], MaxLen(MAX_STATEMENTS)] = ()
    """Of signers, and evidence, that no plan carries yet."""

    def beats(self, roster: Sequence[PeerId]) -> list[tuple[PeerId, int]]:
        """Its beats of the peers of its roster, sorted as in the plan."""
        if not roster:
            return []
        start, heard = self.heard_from % len(roster), self.heard[: len(roster)]
        row = [*roster[start:], *roster[:start]][: len(heard)]
        return list(zip(row, heard, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """The question whether the target lives. The target answers with a heartbeat; others ask it and pass the answer on."""

    target: PeerId
    is_relayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Request for a promise to accept no lower ballot, and for the value accepted so far. `absent` do not count in this
    ballot."""

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
    """The reason for which a ballot got nothing from the sender: it promised a higher one, or it has beats of `alive`, which
    are not absent."""

    parent: Digest
    ballot: Ballot
    promised: Ballot | None
    alive: Annotated[tuple[tuple[PeerId, Count], ...], MaxLen(MAX_ROSTER)]
    """Peers and the newest beats by which they are alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The value that the proposer asks all to accept, as it did itself."""

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
    """The sender accepted this value in this ballot. Acks of a majority choose the value; none of them is a vote yet."""

    parent: Digest
    ballot: Ballot
    value: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Sent by the proposer of a large swarm once a majority accepted; small swarms receive the acks directly."""

    parent: Digest
    ballot: Ballot
    value: Digest
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("chosen", self.parent, self.ballot, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """The proposer of a large swarm passes on the certificate; small swarms receive the votes directly."""

    parent: Digest
    value: Digest
    certificate: Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Request for the missing pieces of this slot: a value, reports of a value, or of peers. Bits name them: digests would be
    long."""

    parent: Digest
    value: Digest | None = None
    """The value that is asked for, ..."""
    lacking: Annotated[int, Ge(0), Lt(1 << MAX_ROSTER)] = 0
    """... or, where any bit is set, those of its reports: one bit per report, in their order, lowest first."""
    reporters: Annotated[int, Ge(0), Lt(1 << MAX_ROSTER)] = 0
    """Peers whose reports for the next plan are asked for, as in `Heartbeat.have`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Reports as they come in, or the answer to a `Pull`."""

    parent: Digest
    value: Value | None = None
    reports: Annotated[tuple[SignedReport, ...], MaxLen(MAX_ROSTER)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PullEntries:
    """Request for the entries that follow the first of these digests that the receiver has. Newest first, thinning out towards
    the first plan."""

    locator: Annotated[tuple[Digest, ...], MaxLen(MAX_LOCATOR)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    entries: Annotated[tuple[LedgerEntry, ...], MaxLen(MAX_ENTRIES)]


SlotMessage = Prepare | Promise | Refusal | Proposal | Ack | Chosen | Vote | Final | Pull | Supply
Message = Heartbeat | Ping | Leave | SlotMessage | PullEntries | Entries


Members = Annotated[tuple[PeerId, ...], MaxLen(MAX_HOSTS)]
PartialSteps = Annotated[tuple[tuple[PeerId, PositiveCount], ...], MaxLen(MAX_HOSTS)]
"""Members that contribute fewer inner steps than planned, in the order of the members, with these."""


NO_AVERAGE = Digest("0" * 64)
"""In place of an average's digest in a void vote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageDigest:
    """The sender's statement that it took part in this average; its one vote of this round. A void vote has no contributors:
    the sender holds none, and can get none. Without a signature it is no vote: the sender holds the average of others, and
    passes their votes on, or, where it is void, only followed the void round."""

    instance: InstanceId
    round: Count
    attempt: Count
    contributors: Members
    digest: HexDigest
    signature: Signature = ""
    is_answer: bool = False
    """Sent because the receiver showed that it lacks it; asks for nothing itself."""
    is_held: bool = True
    """The sender can give the average, if it names one. False after a restart: the vote is in the journal, the average is lost.
    The signature does not cover it."""
    backers: Annotated[tuple[tuple[PeerId, Signature], ...], MaxLen(MAX_HOSTS)] = ()
    """Votes of others for the same average, that the sender passes on."""

    @classmethod
    def void(cls, instance: InstanceId, round: int) -> "AverageDigest":
        return cls(instance=instance, round=round, attempt=0, contributors=(), digest=NO_AVERAGE)

    @property
    def is_void(self) -> bool:
        return not self.contributors

    def payload(self, plan: Digest, voter: PeerId) -> bytes:
        """The signed content; `plan` is that of the round."""
        return payload("average", voter, plan, self.round, self.instance, self.attempt, self.contributors, self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """The sender's attempt ended without a result; the named members did not answer. A sender that names itself will not
    contribute. See `core/averaging/failed_attempts.py`."""

    instance: InstanceId
    round: Count
    attempt: Count
    suspects: Members
    because: PeerId | None = None
    """The member whose report ended the attempt here, where the sender has no suspects of its own."""
    is_question: bool = False
    """The sender waits for an average of others: a receiver answers with its vote, or with its own refusal."""
    decision: HexDigest | None = None
    """Of an attempt in which the sender had all that decides the average: it can take part in a retry that completes that."""
    partial_steps: Count = 0
    """The inner steps that the sender did and contributes, where it ended them early; 0: as many as planned. An attempt that
    counts more ends, and the next one counts these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStart:
    """Request to average again, with these members. Members that wait in the attempt resend it; a member that has voted already
    answers with its vote."""

    instance: InstanceId
    round: Count
    attempt: Count
    members: Members
    completes: HexDigest | None = None
    """The decision of the attempt that this one completes: see `swarm/allreduce/completion.py`."""
    partial_steps: PartialSteps = ()


AveragingMessage = AverageDigest | AttemptFailed | AttemptStart


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalClaim:
    """The state with which a peer came to the end of the run, signed: the same for everybody."""

    peer: PeerId
    plan: HexDigest
    state: HexDigest | None
    """Root of the state; none where the peer hosts nothing."""
    is_agreed: bool
    """By its own word: a majority agreed on every step to this state."""
    signature: Signature = ""

    @property
    def payload(self) -> bytes:
        return payload("final state", self.peer, self.plan, self.state, self.is_agreed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComplete:
    """The sender has carried out the last plan."""

    plan: HexDigest | None
    """The last plan of the sender's history. None in an answer: the sender has not come to one yet, and may need the receiver
    for that."""
    state: HexDigest | None = None
    """Root of the final state that the sender holds; none where it hosts nothing."""
    claims: Annotated[tuple[FinalClaim, ...], MaxLen(2 * MAX_ROSTER)] = ()
    """That of the sender, and those of others where the receiver may have counted others."""
    counted: HexDigest | None = None
    """Digest of all claims that the sender counts."""
    is_answer: bool = False
    """An answer to the same message of the receiver; it asks for no answer itself."""


WireMessage = Message | AveragingMessage | RunComplete
"""All kinds of messages. A kind that is missing here cannot be sent: the type checker refuses it."""
MESSAGE_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(WireMessage)}
"""Messages by their names on the wire."""


# --- journal records, written before the message is sent ----------------------------------------------------------------------


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
    """With the reports, so that the value can be proposed again when no other peer has them."""

    ballot: Ballot
    value: Value
    reports: Annotated[tuple[SignedReport, ...], MaxLen(MAX_ROSTER)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted:
    parent: Digest
    value: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitVoted:
    """This peer's one vote on the average of a round of an instance; `plan` is that of the round."""

    plan: Digest
    vote: AverageDigest


JournalRecord = Incarnation | Promised | Accepted | Voted | CommitVoted | LedgerEntry
RECORD_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(JournalRecord)}
"""Records by their names in the journal."""
