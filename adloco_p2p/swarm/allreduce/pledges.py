"""The pledges of the members of one attempt: contributors bind themselves by a root over their parts, reducers by inner
products and receipts.

Every contributor signs the root of its encoded parts and sends it to every reducer, with the hashes of that reducer's parts. A
reducer reduces nothing before it has all roots, and only parts that hash to them. Every reducer passes the signed roots on to
every member, so all members compare the roots that a contributor sent to each reducer. The roots are part of the result's
digest: hosts that saw different ones cannot commit one average.

Where a rule needs inner products, these are signed, too, and a receipt carries the pledges by which its reducer decided. So all
members of an attempt that succeeds have decided by the same products, and a receipt is about the coefficients of every member.

Two different roots of one contributor, or receipts or products of one reducer, are evidence that anybody can check. A fault
without a signature of the accused peer is no evidence: the attempt then fails with a suspect, as for any other fault.
"""

import asyncio
import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import MaxLen

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.hash_tree import tree_root
from adloco_p2p.core.model.ledger_entry import Equivocation, Evidence, Pledge, PledgeKind, Sign, Verify, receipt_content
from adloco_p2p.core.model.scalars import MAX_HOSTS, Digest, HexDigest, PeerId
from adloco_p2p.decode import decode
from adloco_p2p.errors import AveragingError, RemoteProtocolError
from adloco_p2p.numerics.reduction import BadPart
from adloco_p2p.numerics.tensor_codec import Buffer
from adloco_p2p.swarm.allreduce.allreduce_spec import MAX_PARTS, AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.own_contribution import root_of

_PLEDGE_BYTES = 2048
"""An upper bound on the bytes of a pledge in canonical form."""
_LENGTH = struct.Struct("<H")
_DIGEST_BYTES = 68
"""Bytes of one digest of a list in canonical form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """A contributor's pledge, and the hashes that one reducer needs to check its parts against it."""

    pledge: Pledge
    shards: Annotated[tuple[HexDigest, ...], MaxLen(MAX_HOSTS)]
    """The roots of the shards, by reducer, from which the contribution's root follows."""
    leaves: Annotated[tuple[HexDigest, ...], MaxLen(MAX_PARTS)]
    """The roots of this reducer's parts."""


@dataclass(frozen=True, slots=True)
class HeldContribution:
    """The parts of another member's contribution that this reducer reduces, with the hashes to show them."""

    leaves: tuple[bytes, ...]
    """The roots of this reducer's parts."""
    shards: tuple[bytes, ...]
    """The roots of the shards, by reducer."""
    parts: Mapping[int, Buffer]
    """The encoded parts as received, by index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A reducer's pledge, and the pledges by which it decided: a member that got other products has other coefficients, through
    no fault of the reducer."""

    pledge: Pledge
    products: Annotated[tuple[Pledge, ...], MaxLen(MAX_HOSTS)]
    """The pledges about the products of all reducers, in order; none under a rule that needs no products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pledges:
    """The pledges of several members, as one frame."""

    pledges: Annotated[tuple[Pledge, ...], MaxLen(MAX_HOSTS)]


def most_commitment_bytes(spec: AllReduceSpec, reducer: int) -> int:
    """Return the most bytes of the commitment that a contributor sends to this reducer."""
    return _PLEDGE_BYTES + _DIGEST_BYTES * (len(spec.members) + len(spec.shards[reducer]))


def most_pledges_bytes(num_members: int) -> int:
    """Return the most bytes of a frame with a pledge of each member."""
    return 64 + _PLEDGE_BYTES * num_members


def decode_pledges(payload: bytes, num_members: int) -> tuple[Pledge, ...]:
    """Decode pledges without checking their signatures. Raises RemoteProtocolError."""
    return decode(Pledges, payload, max_bytes=most_pledges_bytes(num_members)).pledges


class Notary:
    """Makes and checks the pledges of one peer's attempts, and reports the evidence that it finds."""

    def __init__(self, own_peer: PeerId, *, sign: Sign, verify: Verify, on_evidence: Callable[[Evidence], None]) -> None:
        self._own_peer = own_peer
        self._sign = sign
        self._verify = verify
        self._on_evidence = on_evidence

    def pledge(self, spec: AllReduceSpec, kind: PledgeKind, content: Digest) -> Pledge:
        """Return this peer's signed pledge of that kind about this attempt."""
        plan, own = spec.plan, self._own_peer
        unsigned = Pledge(kind=kind, peer=own, plan=plan, round=spec.round, key=spec.key, content=content, signature="")
        return replace(unsigned, signature=self._sign(unsigned.payload))

    def check(self, spec: AllReduceSpec, pledge: Pledge, kind: str, peer: PeerId) -> None:
        """Check that this is the pledge of `peer` of that kind about this attempt. Raises RemoteProtocolError."""
        if (pledge.kind, pledge.peer, pledge.plan, pledge.round, pledge.key) != (kind, peer, spec.plan, spec.round, spec.key):
            raise RemoteProtocolError("a pledge about something else")
        if not self._verify(pledge.peer, pledge.payload, pledge.signature):
            raise RemoteProtocolError(f"a pledge that {pledge.peer} did not sign")

    def accuse(self, one: Pledge, other: Pledge) -> None:
        """Report two checked pledges of one peer about one thing that differ."""
        first, second = sorted((one, other), key=lambda pledge: pledge.content)
        self._on_evidence(Equivocation(first=first, second=second))

    def compare(self, held: Sequence[Pledge], shown: Sequence[Pledge]) -> tuple[PeerId, ...]:
        """Compare checked pledges of one kind about one attempt with those that another member reports, the first of each peer.
        Return the peers that signed two different ones."""
        by_peer, liars = {pledge.peer: pledge for pledge in held}, []
        for pledge in shown:
            own = by_peer.pop(pledge.peer, None)
            if own is None or own.content == pledge.content:
                continue
            is_comparable = replace(own, content=pledge.content, signature=pledge.signature) == pledge
            if is_comparable and self._verify(pledge.peer, pledge.payload, pledge.signature):
                self.accuse(own, pledge)
                liars.append(pledge.peer)
        return tuple(liars)


class CommitmentBook:
    """The commitments of one attempt on one member."""

    def __init__(self, spec: AllReduceSpec, me: int, notary: Notary) -> None:
        self.is_complete = asyncio.Event()
        """Set once the roots of all contributors are here and, on a reducer, the hashes of all its parts."""
        self._spec, self._me = spec, me
        self._notary = notary
        self._is_here = {member: asyncio.Event() for member in spec.contributors}
        self._pledges: dict[int, Pledge] = {}
        self._leaves: dict[int, tuple[bytes, ...]] = {}
        """By contributor: the roots of its parts for this reducer."""
        self._shards: dict[int, tuple[bytes, ...]] = {}
        """By contributor: the roots of its shards, by reducer."""
        self.own_leaves: tuple[tuple[bytes, ...], ...] = ()
        """The roots of the own parts, by reducer; empty for a member that only receives."""

    @property
    def roots(self) -> list[Digest]:
        """The roots of all contributions, in order. Only when complete."""
        return [self._pledges[member].content for member in self._spec.contributors]

    @property
    def missing(self) -> tuple[int, ...]:
        """The contributors that have not committed themselves here."""
        return tuple(member for member in self._spec.contributors if member not in self._leaves)

    async def wait_for(self, member: int) -> None:
        """Wait until this contributor has committed itself here, or, if it is this member, has hashed its parts."""
        await self._is_here[member].wait()

    def leaf(self, member: int, part: Part) -> bytes:
        """Return the root that a contribution to one of this reducer's parts must have. Only when complete."""
        return self._leaves[member][self._spec.place_of[part.index]]

    def commit_own(self, leaves: tuple[tuple[bytes, ...], ...]) -> None:
        """Sign the root of the own parts; `leaves` come from `OwnContribution.leaves`."""
        self.own_leaves = leaves
        root = root_of(self._spec, [tree_root(shard) for shard in leaves])
        self._put(self._me, self._notary.pledge(self._spec, "contribution", root), leaves[self._me])

    async def own_frame(self, reducer: int) -> bytes:
        """Wait for the own commitment, and return it encoded for this reducer."""
        await self.wait_for(self._me)
        commitment = Commitment(
            pledge=self._pledges[self._me],
            shards=tuple(Digest(tree_root(shard).hex()) for shard in self.own_leaves),
            leaves=tuple(Digest(leaf.hex()) for leaf in self.own_leaves[reducer]),
        )
        return canonical.encode(commitment)

    def take(self, member: int, payload: bytes) -> None:
        """Take a contributor's commitment to this reducer. Raises BadPart."""
        spec, me = self._spec, self._me
        try:
            commitment = decode(Commitment, payload, max_bytes=most_commitment_bytes(spec, me))
            self._notary.check(spec, commitment.pledge, "contribution", spec.members[member])
        except RemoteProtocolError as error:
            raise BadPart(member, f"no commitment: {error}") from None
        shards = [bytes.fromhex(digest) for digest in commitment.shards]
        leaves = tuple(bytes.fromhex(digest) for digest in commitment.leaves)
        is_whole = len(shards) == len(spec.members) and len(leaves) == len(spec.shards[me])
        if not is_whole or tree_root(leaves) != shards[me] or root_of(spec, shards) != commitment.pledge.content:
            raise BadPart(member, "a commitment whose hashes are not those of its root")
        self._shards[member] = tuple(shards)
        self._put(member, commitment.pledge, leaves)

    def held_of(self, member: int, parts: Mapping[int, Buffer]) -> HeldContribution:
        """Return another member's contribution, as far as this reducer has it."""
        return HeldContribution(self._leaves[member], self._shards[member], parts)

    def frame(self) -> bytes:
        """Return all commitments' pledges, as this reducer got them, encoded. Only when complete."""
        return canonical.encode(Pledges(pledges=tuple(self._pledges[member] for member in self._spec.contributors)))

    def take_all(self, reducer: int, payload: bytes) -> None:
        """Take a reducer's list of all contributors' pledges. Raises BadPart; AveragingError where a contributor sent that
        reducer another pledge."""
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
            self._is_here[member].set()
        is_reducer = bool(self._spec.shards[self._me])
        if len(self._pledges) == len(self._spec.contributors) and not (is_reducer and self.missing):
            self.is_complete.set()


class ProductsBook:
    """The reducers' pledges about inner products of one attempt on one member; empty under a rule that needs no products."""

    def __init__(self, spec: AllReduceSpec, notary: Notary) -> None:
        self._spec, self._notary = spec, notary
        self._pledges: dict[int, Pledge] = {}
        self._own = b""
        self._has_own = asyncio.Event()

    @property
    def all(self) -> tuple[Pledge, ...]:
        """The pledges of all reducers, in order. Only once all are here."""
        return tuple(self._pledges[reducer] for reducer in self._spec.reducers) if self._spec.needs_gram else ()

    def sign(self, me: int, products: bytes) -> None:
        """Sign this reducer's products, which are computed."""
        self._pledges[me] = self._notary.pledge(self._spec, "products", _content_of(products))
        pledge = canonical.encode(self._pledges[me])
        self._own = _LENGTH.pack(len(pledge)) + pledge + products
        self._has_own.set()

    async def own(self) -> bytes:
        """Wait for the own signed products, and return them encoded."""
        await self._has_own.wait()
        return self._own

    def take(self, reducer: int, payload: bytes) -> bytes:
        """Take a reducer's signed products, and return them without the pledge. Raises BadPart."""
        begin = _LENGTH.size
        try:
            end = begin + (_LENGTH.unpack_from(payload)[0] if len(payload) >= begin else 0)
            pledge = decode(Pledge, payload[begin:end], max_bytes=_PLEDGE_BYTES)
            self._notary.check(self._spec, pledge, "products", self._spec.members[reducer])
            if pledge.content != _content_of(payload[end:]):
                raise RemoteProtocolError("a pledge about other products")
        except RemoteProtocolError as error:
            raise BadPart(reducer, f"products without a pledge: {error}") from None
        self._pledges[reducer] = pledge
        return payload[end:]


def _content_of(products: bytes) -> Digest:
    return Digest(hashlib.sha256(products).hexdigest())


class ReceiptBook:
    """The receipts of one attempt's reducers on one member."""

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
        """The pledges of all receipts, in the order of the reducers. Only when complete."""
        return tuple(self.of(self._spec.reducers).values())

    def of(self, reducers: Sequence[int]) -> dict[int, Pledge]:
        """Return the pledges of these reducers' receipts, by reducer. Only when they are here."""
        return {reducer: self._receipts[reducer].pledge for reducer in reducers}

    def sign(self, me: int, inputs: Digest, parts: Sequence[bytes], products: tuple[Pledge, ...]) -> None:
        """Sign the own receipt, when all own parts are made; `parts` are their roots."""
        pledge = self._notary.pledge(self._spec, "reduction", receipt_content(inputs, tree_root(parts)))
        self._receipts[me] = Receipt(pledge=pledge, products=products)
        self._own = canonical.encode(self._receipts[me])
        self._has_own.set()

    async def own(self) -> bytes:
        """Wait for the own signed receipt, and return it encoded."""
        await self._has_own.wait()
        return self._own

    def take(self, reducer: int, payload: bytes) -> None:
        """Take a reducer's receipt. Raises BadPart."""
        try:
            receipt = decode(Receipt, payload, max_bytes=most_pledges_bytes(1 + len(self._spec.members)))
            self._notary.check(self._spec, receipt.pledge, "reduction", self._spec.members[reducer])
        except RemoteProtocolError as error:
            raise BadPart(reducer, f"no receipt: {error}") from None
        self._receipts[reducer] = receipt

    def check(self, reducer: int, inputs: Digest, parts: Sequence[bytes], products: tuple[Pledge, ...]) -> None:
        """Check that a receipt is about the inputs that this member decided on and the parts that it holds.

        `parts` are the roots of these parts, `products` the pledges that this member decided by. Raises BadPart; AveragingError
        where a third peer signed two different products.
        """
        receipt = self._receipts[reducer]
        if receipt.pledge.content == receipt_content(inputs, tree_root(parts)):
            return
        liars = self._notary.compare(products, receipt.products)
        if liars:
            raise AveragingError(f"{', '.join(liars)} signed different products for two members", suspects=liars)
        raise BadPart(reducer, "a receipt that is not about the contributions and the parts that it sent")
