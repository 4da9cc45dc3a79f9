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
from adloco_p2p.core.model.scalars import MAX_HOSTS, MAX_ROSTER, Count, Digest, HexDigest, PeerId, is_printable

# --- reports ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class SignedReport:
    report: Report
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("report", canonical.digest_once(self.report))


MAX_REASON = 200
"""Characters of the reason of a ban."""

# --- admission -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """Permission to take a seat for any peer that signs with this key. Made by a signer of the run. The private part of the key
    travels in a join link; the rest of an invitation is public."""

    run: Digest
    signer: PeerId
    key: PeerId
    """The public part of the key, in the form of a peer id."""
    seats: Annotated[int, Ge(1), Le(MAX_ROSTER)]
    """Peers that it lets in, over the whole run."""
    last_round: Count
    """The last plan that may admit by it."""
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("invitation", self.run, self.signer, self.key, self.seats, self.last_round)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """An invitation, made out to one peer by its key."""

    invitation: Invitation
    signature: Signature

    def payload(self, peer: PeerId) -> bytes:
        return payload("ticket", self.invitation.run, self.invitation.key, peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOfWork:
    """A nonce that a newcomer found for its own identity, where a seat costs computing: `core/ledger/proof_of_work.py`."""

    round: Count
    """Of the plan that it was found for."""
    nonce: Count


NOBODY = PeerId("")
Action = Literal["ban", "unban", "revoke", "add_signer", "remove_signer", "stop", "pause", "resume", "change"]


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Statement:
    """A signer's decision about a peer, an invitation or the run. It takes effect with the plan that carries it, or later."""

    run: Digest
    signer: PeerId
    serial: Count
    """Distinguishes two equal statements of a signer; of two in one plan the higher one is the later."""
    action: Action
    subject: Annotated[PeerId, Predicate(is_printable)] = NOBODY
    """The peer; for `revoke` the key of the invitation; empty where it is about the run."""
    round: Count = 0
    """For `stop` the last round; for `pause` and `change` the first one."""
    settings: Settings | None = None
    """For `change`."""
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
    """A host's pledge about one attempt at an average. An honest peer signs one of each kind under a key, ever."""

    kind: PledgeKind
    """contribution: the root of the host's encoded parts, before anything is reduced. products: the inner products that a
    reducer computed. reduction, a receipt: from which contributions, with which coefficients, the host made which parts."""
    peer: PeerId
    plan: HexDigest
    round: Count
    """Of that plan."""
    key: HexDigest
    """Of the attempt: instance, number and members are in it."""
    content: HexDigest
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("pledge", self.kind, self.peer, self.plan, self.round, self.key, self.content)


class _Ban:
    """What evidence has in common with a signer's statement that bans."""

    __slots__ = ()

    @property
    def about(self) -> Pledge:
        """The round and the plan that the evidence is about, and the peer that it bans."""
        raise NotImplementedError

    @property
    def action(self) -> Literal["ban"]:
        return "ban"

    @property
    def subject(self) -> PeerId:
        return self.about.peer

    @property
    def serial(self) -> int:
        """Before every statement of a signer, so that an `unban` in the same plan counts as the later one."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Equivocation(_Ban):
    """Evidence: two pledges of one peer that exclude each other. It bans as a signer's statement does; anybody can check it."""

    first: Pledge
    second: Pledge
    """The one with the greater content."""

    @property
    def about(self) -> Pledge:
        return self.first

    @property
    def reason(self) -> str:
        return f"signed two pledges about one {self.first.kind} in round {self.first.round}"


MAX_SLICE_TEXT, MAX_WAY_TEXT = 1 << 13, 1 << 11


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenSlice:
    """A few values of a vector as they were encoded, and the proof that they are in it; see `hash_tree.py`."""

    data: Annotated[str, MaxLen(MAX_SLICE_TEXT)]
    """Base64."""
    to_shard: Annotated[str, MaxLen(MAX_WAY_TEXT)]
    """Base64: from the slice to the root of its shard."""
    to_root: Annotated[str, MaxLen(MAX_WAY_TEXT)] = ""
    """Base64: of a contribution, from the shard, under the name of its reducer, to the root."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class WrongSum(_Ban):
    """Evidence: by its own receipt a reducer made values that do not follow from the contributions and coefficients that the
    receipt names. A few values are enough, so the evidence is short and anybody can make them again."""

    receipt: Pledge
    sent_codec: Annotated[int, Ge(0), Le(255)]
    mean_codec: Annotated[int, Ge(0), Le(255)]
    """Codes of the codecs of contributions and of means."""
    roots: Annotated[tuple[HexDigest, ...], MaxLen(MAX_HOSTS)]
    """The commitments of the contributors, in the order of summation."""
    coefficients: Annotated[tuple[Annotated[float, Ge(0)], ...], MaxLen(MAX_HOSTS)]
    divisors: Annotated[tuple[Annotated[float, Ge(0)], ...], MaxLen(MAX_HOSTS)] = ()
    """As `Decision.divisors`: of each contribution, where every value is divided by the sum of those that name it."""
    first: Count
    """Index of the first of the values in the vector."""
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
"""Canonical bytes of a wrong sum; a plan carries one, so that it fits into a message."""


def inputs_digest(
    sent_codec: int, mean_codec: int, roots: Sequence[str], coefficients: Sequence[float], divisors: Sequence[float] = ()
) -> Digest:
    """The inputs of an average: contributions, the coefficient of each, its divisor where there is one, and how they and the
    average are encoded."""
    head, factors = struct.pack("<BBH", sent_codec, mean_codec, len(roots)), (*coefficients, *divisors)
    data = bytes.fromhex("".join(roots)) + struct.pack(f"<{len(factors)}d", *factors)
    return Digest(hashlib.sha256(head + data).hexdigest())


def receipt_content(inputs: Digest, shard: bytes) -> Digest:
    """The content of a reducer's receipt: from these inputs it made the parts under this root."""
    return Digest(hashlib.sha256(bytes.fromhex(inputs) + shard).hexdigest())


Evidence = Equivocation | WrongSum
Decree = Statement | Evidence
"""A decree takes or gives back a seat: a signer's statement, or evidence."""
MAX_STATEMENTS = 16
"""Decrees that one plan carries."""

# --- membership ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A peer that is not on the roster asks to be; repeated with every heartbeat until it is."""

    peer: PeerId
    run: Digest
    capacity: Capacity
    beat: Count
    """The peer's heartbeat count; a request with a higher count replaces one with a lower."""
    round: Count
    """Of the newest plan that the peer had: an old request, which anybody may have kept, gives no seat later."""
    ticket: Ticket | ProofOfWork | None = None
    """Of a newcomer, where the run asks for one: by invitation, or for computing."""
    signature: Signature

    @property
    def payload(self) -> bytes:
        return payload("join", self.peer, self.run, self.capacity, self.beat, self.round, self.ticket)


JOIN_ROUNDS = 16
"""A join request counts up to this many rounds after the plan that its peer had; it is made anew with every heartbeat."""
MAX_JOINS = 64
"""Newcomers that one plan admits."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Value:
    """The inputs of a plan, and the plan that the rule makes of them."""

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
    statements: Annotated[tuple[Decree, ...], MaxLen(MAX_STATEMENTS)] = ()
    """Sorted by serial, then by digest."""


MAX_VALUE_BYTES = 1 << 20
"""Canonical bytes: more than the largest value that can be valid, of 4,096 seats and all decrees that a plan carries."""


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
class Reorg:
    """A longer history was found and replaces the own one. Training of this side since the fork is merged in; see
    `core/planning/branch_merge.py`."""

    fork: RoundPlan
    """The last plan that both have."""
    lost: tuple[LedgerEntry, ...]
    won: tuple[LedgerEntry, ...]


MAX_ENTRIES = 128
"""Ledger entries in one message."""
Sign = Callable[[bytes], str]
Verify = Callable[[PeerId, bytes, str], bool]


def payload(kind: str, *parts: object) -> bytes:
    """The bytes that are signed: the kind, then the content."""
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
        """Of two histories between which the electors are undecided the higher rank wins: more proven samples, then more
        rounds, then the digest (`core/ledger/fork_choice.py`)."""
        return self.samples, self.round, self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A vote for one value as the successor of its parent. A peer votes for one value per parent, in its whole life."""

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


def cast_payloads(certificate: Certificate, *, parent: Digest, value: Digest) -> Iterator[bytes]:
    """The content that the peer of each vote of the certificate signed, if it is one for this value: `Vote.payload`. The common
    part, among it the names of the absent, is encoded once."""
    common = canonical.encode((parent, certificate.ballot, certificate.absent, value))[1:-1]
    for cast in certificate.votes:
        yield b'["vote",%s,%s,%s]' % (canonical.encode(cast.peer), common, canonical.encode(cast.abstains))
