"""What the members of one attempt bind themselves to: contributors by a root over their parts, reducers by receipts.

Every contributor signs the root of its encoded parts and sends it to every reducer, with the hashes of that reducer's parts; a
reducer reduces nothing before it has the roots of all, and only parts that hash to them. Every reducer passes the signed roots
on to every member, so all members compare the roots that a contributor sent to each reducer. The roots are part of the
result's digest: hosts that saw different ones cannot commit one average.

Two signed roots of one contributor, or two receipts of one reducer, are evidence, which anybody can check. What is not signed
by the accused itself is none: then the attempt fails with a suspect, as for any other fault.
"""

import asyncio
import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import MaxLen

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import Equivocation, Pledge, Sign, Verify
from adloco_p2p.core.model.types import MAX_HOSTS, Digest, HexDigest, PeerId
from adloco_p2p.decode import decode
from adloco_p2p.errors import AveragingError, RemoteProtocolError
from adloco_p2p.numerics.reduction import BadPart
from adloco_p2p.swarm.allreduce.allreduce_spec import MAX_PARTS, AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.own_contribution import root_of, shard_digest

_PLEDGE_BYTES = 2048
"""More than a pledge takes in canonical form."""
_DIGEST_BYTES = 68
"""Of a digest in a list, in canonical form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """A contributor's pledge, and what one reducer needs to check its own parts by it."""

    pledge: Pledge
    shards: Annotated[tuple[HexDigest, ...], MaxLen(MAX_HOSTS)]
    """See `shard_digest`, by reducer; together they are the root."""
    leaves: Annotated[tuple[HexDigest, ...], MaxLen(MAX_PARTS)]
    """SHA-256 of each part of this reducer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A reducer's pledge, and the one of its two halves that a member cannot compute itself."""

    pledge: Pledge
    inputs: HexDigest
    """See `inputs_digest`. A member that decided by other products than this reducer got has other ones, by no fault of the
    reducer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pledges:
    """Of several members."""

    pledges: Annotated[tuple[Pledge, ...], MaxLen(MAX_HOSTS)]


def most_commitment_bytes(spec: AllReduceSpec, reducer: int) -> int:
    """Of the frame that a contributor sends to this reducer."""
    return _PLEDGE_BYTES + _DIGEST_BYTES * (len(spec.members) + len(spec.shards[reducer]))


def most_pledges_bytes(num_members: int) -> int:
    """Of a frame with a pledge of each member."""
    return 64 + _PLEDGE_BYTES * num_members


def decode_pledges(payload: bytes, num_members: int) -> tuple[Pledge, ...]:
    """Not checked further. Raises RemoteProtocolError."""
    return decode(Pledges, payload, max_bytes=most_pledges_bytes(num_members)).pledges


def inputs_digest(roots: Sequence[Digest], coefficients: Sequence[float]) -> Digest:
    """What an average is made from: contributions, and the coefficient of each."""
    data = bytes.fromhex("".join(roots)) + struct.pack(f"<{len(coefficients)}d", *coefficients)
    return Digest(hashlib.sha256(data).hexdigest())


def receipt_content(inputs: Digest, parts: Sequence[bytes]) -> Digest:
    """The content of a reducer's receipt: from these inputs it made these parts (SHA-256 of each)."""
    return Digest(hashlib.sha256(bytes.fromhex(inputs) + b"".join(parts)).hexdigest())


class Notary:
    """Makes and checks the pledges of one peer's attempts, and hands out the evidence that it meets."""

    def __init__(self, own_peer: PeerId, *, sign: Sign, verify: Verify, on_evidence: Callable[[Equivocation], None]) -> None:
        self._own_peer = own_peer
        self._sign = sign
        self._verify = verify
        self._on_evidence = on_evidence

    def pledge(self, spec: AllReduceSpec, kind: Literal["contribution", "reduction"], content: Digest) -> Pledge:
        """This peer's."""
        plan, own = spec.plan, self._own_peer
        unsigned = Pledge(kind=kind, peer=own, plan=plan, round=spec.round, key=spec.key, content=content, signature="")
        return replace(unsigned, signature=self._sign(unsigned.payload))

    def check(self, spec: AllReduceSpec, pledge: Pledge, kind: str, peer: PeerId) -> None:
        """It is this peer's pledge of that kind about this attempt. Raises RemoteProtocolError."""
        if (pledge.kind, pledge.peer, pledge.plan, pledge.round, pledge.key) != (kind, peer, spec.plan, spec.round, spec.key):
            raise RemoteProtocolError("a pledge about something else")
        if not self._verify(pledge.peer, pledge.payload, pledge.signature):
            raise RemoteProtocolError(f"a pledge that {pledge.peer} did not sign")

    def accuse(self, one: Pledge, other: Pledge) -> None:
        """Two pledges of one peer, both checked, about one thing, that differ."""
        first, second = sorted((one, other), key=lambda pledge: pledge.content)
        self._on_evidence(Equivocation(first=first, second=second))

    def compare_receipts(self, known: Sequence[Pledge], told: Sequence[Pledge]) -> None:
        """Receipts of one attempt as this peer got them, checked, and as another member says it did."""
        held = {receipt.peer: receipt for receipt in known}
        for receipt in told:
            own = held.get(receipt.peer)
            if own is None or own.content == receipt.content:
                continue
            is_comparable = replace(own, content=receipt.content, signature=receipt.signature) == receipt
            if is_comparable and self._verify(receipt.peer, receipt.payload, receipt.signature):
                self.accuse(own, receipt)


class CommitmentBook:
    """The commitments of one attempt, on one member."""

    def __init__(self, spec: AllReduceSpec, me: int, notary: Notary) -> None:
        self.is_complete = asyncio.Event()
        """The roots of all contributors are here and, on a reducer, the hashes of all its parts."""
        self._spec, self._me = spec, me
        self._notary = notary
        self._pledges: dict[int, Pledge] = {}
        self._leaves: dict[int, tuple[bytes, ...]] = {}
        """By contributor: hashes of its parts for this reducer."""
        self._own_leaves: tuple[tuple[bytes, ...], ...] = ()
        self._has_own = asyncio.Event()

    @property
    def roots(self) -> list[Digest]:
        """In the order of the contributors; only when complete."""
        return [self._pledges[member].content for member in self._spec.contributors]

    @property
    def missing(self) -> tuple[int, ...]:
        """Contributors that have not committed themselves here."""
        return tuple(member for member in self._spec.contributors if member not in self._leaves)

    def leaf(self, member: int, part: Part) -> bytes:
        """SHA-256 that a contribution to one of this reducer's parts must have; only when complete."""
        return self._leaves[member][part.index - self._spec.shards[self._me][0].index]

    def commit_own(self, leaves: tuple[tuple[bytes, ...], ...]) -> None:
        """Sign the root of the own parts; `leaves` are those of `OwnContribution`."""
        self._own_leaves = leaves
        root = root_of([shard_digest(shard) for shard in leaves])
        self._put(self._me, self._notary.pledge(self._spec, "contribution", root), leaves[self._me])
        self._has_own.set()

    async def own_frame(self, reducer: int) -> bytes:
        """The own commitment as this reducer gets it, once it is made."""
        await self._has_own.wait()
        commitment = Commitment(
            pledge=self._pledges[self._me],
            shards=tuple(Digest(shard_digest(shard).hex()) for shard in self._own_leaves),
            leaves=tuple(Digest(leaf.hex()) for leaf in self._own_leaves[reducer]),
        )
        return canonical.encode(commitment)

    def take(self, member: int, payload: bytes) -> None:
        """A contributor commits itself to this reducer. Raises BadPart."""
        spec, me = self._spec, self._me
        try:
            commitment = decode(Commitment, payload, max_bytes=most_commitment_bytes(spec, me))
            self._notary.check(spec, commitment.pledge, "contribution", spec.members[member])
        except RemoteProtocolError as error:
            raise BadPart(member, f"no commitment: {error}") from None
        shards = [bytes.fromhex(digest) for digest in commitment.shards]
        leaves = tuple(bytes.fromhex(digest) for digest in commitment.leaves)
        is_whole = len(shards) == len(spec.members) and len(leaves) == len(spec.shards[me])
        if not is_whole or shard_digest(leaves) != shards[me] or root_of(shards) != commitment.pledge.content:
            raise BadPart(member, "a commitment whose hashes are not those of its root")
        self._put(member, commitment.pledge, leaves)

    def frame(self) -> bytes:
        """All roots, as this reducer got them; only when complete."""
        return canonical.encode(Pledges(pledges=tuple(self._pledges[member] for member in self._spec.contributors)))

    def take_all(self, reducer: int, payload: bytes) -> None:
        """What a reducer was told by all contributors. Raises BadPart; AveragingError where one told it something else."""
        spec = self._spec
        try:
            pledges = decode_pledges(payload, len(spec.members))
            if len(pledges) != len(spec.contributors):
                raise RemoteProtocolError(f"{len(pledges)} of {len(spec.contributors)} commitments")
            for member, pledge in zip(spec.contributors, pledges, strict=True):
                if self._pledges.get(member) != pledge:
                    self._notary.check(spec, pledge, "contribution", spec.members[member])
        except RemoteProtocolError as error:
            raise BadPart(reducer, f"commitments of others: {error}") from None
        for member, pledge in zip(spec.contributors, pledges, strict=True):
            self._put(member, pledge, None)

    def _put(self, member: int, pledge: Pledge, leaves: tuple[bytes, ...] | None) -> None:
        known = self._pledges.setdefault(member, pledge)
        if known.content != pledge.content:
            self._notary.accuse(known, pledge)
            raise AveragingError(f"{pledge.peer} committed itself to two contributions", suspects=(pledge.peer,))
        if leaves is not None:
            self._leaves[member] = leaves
        is_reducer = bool(self._spec.shards[self._me])
        if len(self._pledges) == len(self._spec.contributors) and not (is_reducer and self.missing):
            self.is_complete.set()


class ReceiptBook:
    """The receipts of one attempt's reducers, on one member."""

    def __init__(self, spec: AllReduceSpec, notary: Notary) -> None:
        self._spec = spec
        self._notary = notary
        self._receipts: dict[int, Receipt] = {}
        self._own = b""
        self._has_own = asyncio.Event()

    def has(self, reducer: int) -> bool:
        return reducer in self._receipts

    @property
    def is_complete(self) -> bool:
        return len(self._receipts) == len(self._spec.reducers)

    @property
    def all(self) -> tuple[Pledge, ...]:
        """In the order of the reducers; only when complete."""
        return tuple(self._receipts[reducer].pledge for reducer in self._spec.reducers)

    def sign(self, me: int, inputs: Digest, parts: Sequence[bytes]) -> None:
        """All own parts are made; `parts` are their SHA-256."""
        pledge = self._notary.pledge(self._spec, "reduction", receipt_content(inputs, parts))
        self._receipts[me] = Receipt(pledge=pledge, inputs=inputs)
        self._own = canonical.encode(self._receipts[me])
        self._has_own.set()

    async def own(self) -> bytes:
        """The own receipt as the members get it, once it is signed."""
        await self._has_own.wait()
        return self._own

    def take(self, reducer: int, payload: bytes) -> None:
        """A reducer's receipt. Raises BadPart."""
        try:
            receipt = decode(Receipt, payload, max_bytes=_PLEDGE_BYTES)
            self._notary.check(self._spec, receipt.pledge, "reduction", self._spec.members[reducer])
        except RemoteProtocolError as error:
            raise BadPart(reducer, f"no receipt: {error}") from None
        self._receipts[reducer] = receipt

    def check(self, reducer: int, parts: Sequence[bytes]) -> None:
        """The receipt is about the parts that this member holds; `parts` are their SHA-256. Raises BadPart."""
        receipt = self._receipts[reducer]
        if receipt.pledge.content != receipt_content(receipt.inputs, parts):
            raise BadPart(reducer, "a receipt that is not about the parts that it sent")
