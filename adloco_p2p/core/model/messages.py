"""The messages of membership, consensus and averaging, and the journal records that precede them.

The shell proves the identity of a message's SENDER. Content that others pass on (reports, join requests, leaves, proposals,
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
"""Most beats in a heartbeat. In a swarm of more peers news takes longer, so leases are longer there."""
MAX_PASSED_ON = 16
"""Most join requests, most leaves, and most incarnations that one heartbeat passes on."""
MAX_ENTRY_BYTES = 48 << 20
"""Most canonical bytes of a ledger entry: more than the largest valid one, of 4,096 seats with 256 hosts of each of 64
instances."""
MAX_MESSAGE_BYTES = MAX_ENTRY_BYTES + (64 << 10)
"""Most canonical bytes of any message: room for the largest entry."""
MAX_LOCATOR = 80
"""Most digests in a block locator, by which two peers find where their ledgers part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A peer's announcement of its newest incarnation; others may report beats of this one only."""

    peer: PeerId
    run: Digest
    incarnation: Count
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("life", self.peer, self.run, self.incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A peer's announcement that it leaves. A higher beat of the same peer revokes it."""

    peer: PeerId
    run: Digest
    beat: Count
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("leave", self.peer, self.run, self.beat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A peer's sign of life, with the beats of others that it has learned. It goes to a few peers per period, and its size no
    longer grows once a swarm is large."""

    beat: Count
    roster: Digest
    """Digest of the plan whose roster gives the order of `heard`."""
    heard: Annotated[tuple[Count, ...], MaxLen(MAX_HEARD)]
    """Highest beat learned of each peer of that roster, 0 for none; for a large roster, of a drawn run of consecutive peers
    only."""
    head: Head
    have: Annotated[int, Ge(0), Lt(1 << MAX_ROSTER)]
    """The peers whose reports for the next plan the sender holds: one bit per peer of the roster of their round, lowest
    first."""
    heard_from: Annotated[int, Ge(0), Lt(MAX_ROSTER)] = 0
    """Place in the roster at which `heard` begins; after the last peer it wraps around to the first."""
    joins: Annotated[tuple[JoinRequest, ...], MaxLen(MAX_PASSED_ON)] = ()
    leaves: Annotated[tuple[Leave, ...], MaxLen(MAX_PASSED_ON)] = ()
    lives: Annotated[tuple[Life, ...], MaxLen(MAX_PASSED_ON)] = ()
    """Incarnations of members: the sender's own first, then those that it learned lately."""
    statements: Annotated[tuple[Decree, ...], MaxLen(MAX_STATEMENTS)] = ()
    """Statements of signers and evidence that no plan carries yet."""

    def beats(self, roster: Sequence[PeerId]) -> list[tuple[PeerId, int]]:
        """Return the peers of `heard` with their beats; `roster` is that of the plan, in its order."""
        if not roster:
            return []
        start, heard = self.heard_from % len(roster), self.heard[: len(roster)]
        row = [*roster[start:], *roster[:start]][: len(heard)]
        return list(zip(row, heard, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """A question whether the target is alive. The target answers with a heartbeat; other peers ask it and pass the answer
    on."""

    target: PeerId
    is_relayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Request for a promise to accept no lower ballot, and for the value accepted so far. The peers in `absent` do not count in
    this ballot."""

    parent: Digest
    ballot: Ballot
    absent: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    parent: Digest
    ballot: Ballot
    accepted: tuple[Ballot, Digest] | None
    """The highest ballot in which the sender accepted a value, and the digest of that value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a ballot got nothing from the sender: it promised a higher ballot, or it has beats of peers that the ballot calls
    absent."""

    parent: Digest
    ballot: Ballot
    promised: Ballot | None
    alive: Annotated[tuple[tuple[PeerId, Count], ...], MaxLen(MAX_ROSTER)]
    """Peers that are not absent, with their newest beats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The value that the proposer has accepted itself and asks all others to accept."""

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
    """The sender accepted this value in this ballot. Acks of a majority choose the value; an ack is not a vote."""

    parent: Digest
    ballot: Ballot
    value: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Notice from the proposer of a large swarm that a majority accepted; small swarms send the acks to everybody."""

    parent: Digest
    ballot: Ballot
    value: Digest
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("chosen", self.parent, self.ballot, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """The certificate, passed on by the proposer of a large swarm; small swarms send the votes to everybody."""

    parent: Digest
    value: Digest
    certificate: Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Request for missing pieces of this slot: a value, reports of a value, or reports of peers. Reports are named by bits,
    because digests would be long."""

    parent: Digest
    value: Digest | None = None
    """The value that is asked for, or whose reports are."""
    lacking: Annotated[int, Ge(0), Lt(1 << MAX_ROSTER)] = 0
    """If any bit is set, the reports of `value` that are asked for instead of it: one bit per report, in their order, lowest
    first."""
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
    """Request for the entries that follow the first of these digests that the receiver knows. The digests begin with the newest
    and thin out towards the first plan."""

    locator: Annotated[tuple[Digest, ...], MaxLen(MAX_LOCATOR)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    entries: Annotated[tuple[LedgerEntry, ...], MaxLen(MAX_ENTRIES)]


SlotMessage = Prepare | Promise | Refusal | Proposal | Ack | Chosen | Vote | Final | Pull | Supply
Message = Heartbeat | Ping | Leave | SlotMessage | PullEntries | Entries


Members = Annotated[tuple[PeerId, ...], MaxLen(MAX_HOSTS)]
PartialSteps = Annotated[tuple[tuple[PeerId, PositiveCount], ...], MaxLen(MAX_HOSTS)]
"""Members that contribute fewer inner steps than planned, with their numbers of steps, in the order of the members."""


NO_AVERAGE = Digest("0" * 64)
"""Stands for an average's digest in a void vote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageDigest:
    """A commit vote: the sender took part in this average, and votes once per round. A void vote has no contributors: the
    sender holds no average and can get none. Without a signature it is no vote: the sender holds the average of others and
    passes their votes on or, if it is void, only followed the void round."""

    instance: InstanceId
    round: Count
    attempt: Count
    contributors: Members
    digest: HexDigest
    signature: Signature = ""
    is_answer: bool = False
    """The sender answers a receiver that showed that it lacks the vote; no answer is expected."""
    is_held: bool = True
    """The sender can serve the average, if the vote names one. False after a restart: the vote is in the journal, but the
    average is lost. The signature does not cover this field."""
    backers: Annotated[tuple[tuple[PeerId, Signature], ...], MaxLen(MAX_HOSTS)] = ()
    """Commit votes of others for the same average, relayed by the sender."""

    @classmethod
    def void(cls, instance: InstanceId, round: int) -> "AverageDigest":
        return cls(instance=instance, round=round, attempt=0, contributors=(), digest=NO_AVERAGE)

    @property
    def is_void(self) -> bool:
        return not self.contributors

    def payload(self, plan: Digest, voter: PeerId) -> bytes:
        """Return the signed content; `plan` is that of the round."""
        return payload("average", voter, plan, self.round, self.instance, self.attempt, self.contributors, self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """The sender's attempt ended without a result, and the named members did not answer. A sender that names itself will not
    contribute. See `core/averaging/failed_attempts.py`."""

    instance: InstanceId
    round: Count
    attempt: Count
    suspects: Members
    because: PeerId | None = None
    """The member whose report ended the attempt here, if the sender has no suspects of its own."""
    is_question: bool = False
    """The sender waits for an average of others; a receiver answers with its vote, or with its own refusal."""
    decision: HexDigest | None = None
    """Decision of the failed attempt, if the sender had all that decides the average: it can take part in a retry that
    completes it."""
    partial_steps: Count = 0
    """Inner steps that the sender contributes, if it ended them early; 0 for as many as planned. An attempt that counts on more
    ends, and the next one uses this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStart:
    """Request to average again with these members. Members that wait in the attempt resend it; a member that has voted already
    answers with its vote."""

    instance: InstanceId
    round: Count
    attempt: Count
    members: Members
    completes: HexDigest | None = None
    """Decision of the attempt that this one completes; see `swarm/allreduce/completion.py`."""
    partial_steps: PartialSteps = ()


AveragingMessage = AverageDigest | AttemptFailed | AttemptStart


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalClaim:
    """A peer's signed claim of the state with which it came to the end of the run; every peer gets the same claim."""

    peer: PeerId
    plan: HexDigest
    state: HexDigest | None
    """Root of the state; None if the peer hosts nothing."""
    is_agreed: bool
    """The peer claims that a majority agreed on every step to this state."""
    signature: Signature = ""

    @property
    def payload(self) -> bytes:
        return payload("final state", self.peer, self.plan, self.state, self.is_agreed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComplete:
    """The sender has carried out the last plan."""

    plan: HexDigest | None
    """The last plan of the sender's history. None in an answer of a sender that has not come to a last plan yet, and may need
    the receiver for that."""
    state: HexDigest | None = None
    """Root of the final state that the sender holds; None if it hosts nothing."""
    claims: Annotated[tuple[FinalClaim, ...], MaxLen(2 * MAX_ROSTER)] = ()
    """The sender's own claim, and the claims of others if the receiver may have counted other ones."""
    counted: HexDigest | None = None
    """Digest of all claims that the sender counts."""
    is_answer: bool = False
    """The message answers a `RunComplete` of the receiver; no answer is expected."""


WireMessage = Message | AveragingMessage | RunComplete
"""All kinds of messages. The type checker refuses to send any other kind."""
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
    """An accepted value with its reports, so that it can be proposed again when no other peer has them."""

    ballot: Ballot
    value: Value
    reports: Annotated[tuple[SignedReport, ...], MaxLen(MAX_ROSTER)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted:
    parent: Digest
    value: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitVoted:
    """This peer's one commit vote on the average of an instance in a round; `plan` is that of the round."""

    plan: Digest
    vote: AverageDigest


JournalRecord = Incarnation | Promised | Accepted | Voted | CommitVoted | LedgerEntry
RECORD_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(JournalRecord)}
"""Records by their names in the journal."""
