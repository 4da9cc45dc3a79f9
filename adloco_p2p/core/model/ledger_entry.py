"""The parts of a ledger: signed reports, proposed values, votes, certificates, and the entries that they make final."""

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, Predicate

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot, Certificate, Signature
from adloco_p2p.core.model.course import Settings
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import MAX_HOSTS, MAX_ROSTER, Count, Digest, HexDigest, PeerId, is_plain

# --- reports ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class SignedReport:
    report: Report
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("report", canonical.digest_once(self.report))


MAX_REASON = 200
"""Most characters in the reason of a statement."""

# --- admission -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """A signer's permission for any peer that signs with this key to take a seat. The private part of the key travels in a join
    link; the rest of an invitation is public."""

    run: Digest
    signer: PeerId
    key: PeerId
    """The public part of the key, in the form of a peer id."""
    seats: Annotated[int, Ge(1), Le(MAX_ROSTER)]
    """Peers that the invitation lets in, over the whole run."""
    last_round: Count
    """Round of the last plan that may admit a peer by this invitation."""
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("invitation", self.run, self.signer, self.key, self.seats, self.last_round)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """An invitation made out to one peer, signed with the invitation's key."""

    invitation: Invitation
    signature: Signature

    def payload(self, peer: PeerId) -> bytes:
        return payload("ticket", self.invitation.run, self.invitation.key, peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOfWork:
    """A nonce that a newcomer found for its own identity, in a run where a seat costs computing; see
    `core/ledger/proof_of_work.py`."""

    round: Count
    """Round of the plan for which the nonce was found."""
    nonce: Count


NOBODY = PeerId("")
Action = Literal["ban", "unban", "revoke", "add_signer", "remove_signer", "stop", "pause", "resume", "change"]


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Statement:
    """A signer's decision about a peer, an invitation or the run. It takes effect with the plan that carries it, or later."""

    run: Digest
    signer: PeerId
    serial: Count
    """Distinguishes equal statements of a signer; of two statements in one plan, the one with the higher serial is the
    later."""
    action: Action
    subject: Annotated[PeerId, Predicate(is_plain)] = NOBODY
    """The peer or, for `revoke`, the key of the invitation; empty for a statement about the run."""
    round: Count = 0
    """The last round for `stop`; the first one for `pause` and `change`."""
    settings: Settings | None = None
    """The new settings, for `change` only."""
    reason: Annotated[str, MaxLen(MAX_REASON)] = ""
    signature: Signature

    @property
    def payload(self) -> bytes:
        about = (self.action, self.subject, self.round, self.settings, self.reason)
        return payload("statement", self.run, self.signer, self.serial, *about)


# --- evidence --------------------------------------------------------------------------------------------------------


PledgeKind = Literal["contribution", "products", "reduction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pledge:
    """A host's pledge about one attempt at an average. An honest peer signs at most one of each kind under a key."""

    kind: PledgeKind
    """contribution: the root of the host's encoded parts, before anything is reduced. products: the inner products that a
    reducer computed. reduction, a receipt: from which contributions, with which coefficients, the host made which parts."""
    peer: PeerId
    plan: HexDigest
    round: Count
    """Round of that plan."""
    key: HexDigest
    """Key of the attempt; it depends on the instance, the number of the attempt and its members."""
    content: HexDigest
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("pledge", self.kind, self.peer, self.plan, self.round, self.key, self.content)


class _Ban:
    """Base of evidence: the interface that it shares with a signer's statement that bans."""

    __slots__ = ()

    @property
    def about(self) -> Pledge:
        """A pledge that names the round, the plan and the peer that the evidence is about."""
        raise NotImplementedError

    @property
    def action(self) -> Literal["ban"]:
        return "ban"

    @property
    def subject(self) -> PeerId:
        return self.about.peer

    @property
    def serial(self) -> int:
        """Sorts evidence before every statement of a signer, so that an `unban` in the same plan counts as the later one."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Equivocation(_Ban):
    """Evidence of two pledges of one peer that exclude each other. It bans like a signer's statement, and anybody can check
    it."""

    first: Pledge
    second: Pledge
    """The pledge with the greater content."""

    @property
    def about(self) -> Pledge:
        return self.first

    @property
    def reason(self) -> str:
        return f"signed two pledges about one {self.first.kind} in round {self.first.round}"


MAX_SLICE_TEXT, MAX_WAY_TEXT = 1 << 13, 1 << 11


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenSlice:
    """A few encoded values of a vector, and the proof that they are in it; see `hash_tree.py`."""

    data: Annotated[str, MaxLen(MAX_SLICE_TEXT)]
    """The encoded values in base64."""
    to_shard: Annotated[str, MaxLen(MAX_WAY_TEXT)]
    """Path from the slice to the root of its shard, in base64."""
    to_root: Annotated[str, MaxLen(MAX_WAY_TEXT)] = ""
    """For a contribution: path from the shard, hashed with the name of its reducer, to the root; in base64."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class WrongSum(_Ban):
    """Evidence that a reducer made values which do not follow from the contributions and coefficients that its own receipt
    names. A few values are enough, so the evidence is short and anybody can recompute them."""

    receipt: Pledge
    sent_codec: Annotated[int, Ge(0), Le(255)]
    mean_codec: Annotated[int, Ge(0), Le(255)]
    """Codes of the codecs of contributions and of means."""
    roots: Annotated[tuple[HexDigest, ...], MaxLen(MAX_HOSTS)]
    """Roots that the contributors committed to, in the order of summation."""
    coefficients: Annotated[tuple[Annotated[float, Ge(0)], ...], MaxLen(MAX_HOSTS)]
    divisors: Annotated[tuple[Annotated[float, Ge(0)], ...], MaxLen(MAX_HOSTS)] = ()
    """As `Decision.divisors`: the divisor of each contribution, if every value is divided by the sum over those that name
    it."""
    first: Count
    """Index in the vector of the first of the values."""
    inputs: Annotated[tuple[ProvenSlice, ...], MaxLen(MAX_HOSTS)]
    """The values in each contribution whose coefficient is not 0."""
    result: ProvenSlice
    """The values as the reducer made them."""

    @property
    def about(self) -> Pledge:
        return self.receipt

    @property
    def reason(self) -> str:
        return f"returned a sum in round {self.receipt.round} that does not follow from the contributions"


MAX_EVIDENCE_BYTES = 1 << 17
"""Most canonical bytes of a wrong sum. A plan carries one, so that it fits into a message."""


def inputs_digest(
    sent_codec: int, mean_codec: int, roots: Sequence[str], coefficients: Sequence[float], divisors: Sequence[float] = ()
) -> Digest:
    """Return the digest of an average's inputs: the contributions, their coefficients, their divisors if any, and the codecs of
    the contributions and of the average."""
    head, factors = struct.pack("<BBH", sent_codec, mean_codec, len(roots)), (*coefficients, *divisors)
    data = bytes.fromhex("".join(roots)) + struct.pack(f"<{len(factors)}d", *factors)
    return Digest(hashlib.sha256(head + data).hexdigest())


def receipt_content(inputs: Digest, shard: bytes) -> Digest:
    """Return the content of a reducer's receipt: the inputs, and the root of the parts that it made from them."""
    return Digest(hashlib.sha256(bytes.fromhex(inputs) + shard).hexdigest())


Evidence = Equivocation | WrongSum
Decree = Statement | Evidence
"""A signer's statement or evidence, which takes a seat or gives one back."""
MAX_STATEMENTS = 16
"""Most decrees that one plan carries."""

# --- membership ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """The request of a peer for a seat on the roster, repeated with every heartbeat until it has one."""

    peer: PeerId
    run: Digest
    capacity: Capacity
    beat: Count
    """The peer's heartbeat count; a request with a higher count replaces one with a lower."""
    round: Count
    """Round of the newest plan that the peer had, so that an old request, which anybody may have kept, gives no seat later."""
    ticket: Ticket | ProofOfWork | None = None
    """What a newcomer shows if the run asks for it: an invitation, or a proof of work."""
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("join", self.peer, self.run, self.capacity, self.beat, self.round, self.ticket)


JOIN_ROUNDS = 16
"""A join request counts up to this many rounds after the newest plan that its peer had."""
MAX_JOINS = 64
"""Most newcomers that one plan admits."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Value:
    """The inputs of a plan, and the digest of the plan that the rule makes of them."""

    round: Count
    """Round of the resulting plan; the reports are of `round - 2`."""
    parent: Digest
    reports: Annotated[tuple[Digest, ...], MaxLen(MAX_ROSTER)]
    """Digests of signed reports, in the order of the reporters."""
    joined: Annotated[tuple[JoinRequest, ...], MaxLen(MAX_JOINS)]
    """Join requests that the plan grants, sorted by peer."""
    departed: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)]
    """Members that lose their seats, sorted."""
    plan: Digest
    statements: Annotated[tuple[Decree, ...], MaxLen(MAX_STATEMENTS)] = ()
    """Decrees that the plan carries, sorted by serial, then by digest."""


MAX_VALUE_BYTES = 1 << 20
"""Most canonical bytes of a value: more than the largest valid one, of 4,096 seats and all decrees that a plan carries."""


# --- the ledger ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class LedgerEntry:
    """One plan, everything it was made from, and the votes that made it final."""

    plan: RoundPlan
    value: Value
    reports: Annotated[tuple[SignedReport, ...], MaxLen(MAX_ROSTER)]
    """Reports in the order of `value.reports`."""
    certificate: Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Reorg:
    """A better history was found and replaces the own one. The training on this side since the fork is merged in; see
    `core/planning/branch_merge.py`."""

    fork: RoundPlan
    """The last plan that both histories have."""
    lost: tuple[LedgerEntry, ...]
    won: tuple[LedgerEntry, ...]


MAX_ENTRIES = 128
"""Most ledger entries in one message."""
Sign = Callable[[bytes], str]
Verify = Callable[[PeerId, bytes, str], bool]


def payload(kind: str, *parts: object) -> bytes:
    """Return the bytes to sign: the kind, then the content."""
    return canonical.encode((kind, *parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of a peer's ledger."""

    round: Count
    digest: Digest
    samples: Count
    """Samples that the ledger proves, over all its rounds."""

    @property
    def rank(self) -> tuple[int, int, str]:
        """Order of two histories between which the electors are undecided; the higher rank wins: more proven samples, then more
        rounds, then the digest (`core/ledger/fork_choice.py`)."""
        return self.samples, self.round, self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A vote for one value as the successor of its parent. A peer votes for at most one value per parent, ever."""

    peer: PeerId
    parent: Digest
    ballot: Ballot
    absent: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)]
    value: Digest
    abstains: bool
    """The peer voted for another value before a partition, so it stands aside and is not counted."""
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("vote", self.peer, self.parent, self.ballot, self.absent, self.value, self.abstains)


def cast_payloads(certificate: Certificate, *, parent: Digest, value: Digest) -> Iterator[bytes]:
    """For each vote of a certificate for this value, yield the bytes that its peer must have signed (`Vote.payload`). The
    common part, including the absent peers, is encoded only once."""
    common = canonical.encode((parent, certificate.ballot, certificate.absent, value))[1:-1]
    for cast in certificate.votes:
        yield b'["vote",%s,%s,%s]' % (canonical.encode(cast.peer), common, canonical.encode(cast.abstains))
