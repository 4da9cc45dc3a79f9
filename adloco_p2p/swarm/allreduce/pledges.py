"""Pledges of the members of one attempt: contributors bind themselves by a root over their parts, reducers by their
measurements and by receipts.

Every contributor signs the root of its encoded parts and sends it to every reducer, with the hashes of that reducer's parts; a
reducer reduces nothing before it has the roots of all, and only parts that hash to them. Every reducer passes the signed roots
on to every member, so all members compare the roots that a contributor sent to each reducer. The roots are part of the
result's digest: hosts that saw different ones cannot commit one average.

Inner products are signed, too, where a rule needs them, and a receipt names those that its reducer decided by: so all members
of an attempt that ends have decided by the same ones, and a receipt is about the coefficients that every member has.

Two signed roots of one contributor, or two receipts or two products of one reducer, are evidence, which anybody can check. A
fault without a signature of the accused peer is no evidence: the attempt then fails with a suspect, as for any other fault.
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
"""More than a pledge takes in canonical form."""
_LENGTH = struct.Struct("<H")
_DIGEST_BYTES = 68
"""Of a digest in a list, in canonical form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """A contributor's pledge, and what one reducer needs to check its own parts by it."""

    pledge: Pledge
    shards: Annotated[tuple[HexDigest, ...], MaxLen(MAX_HOSTS)]
    """Roots of the shards, by reducer; together they are the root."""
    leaves: Annotated[tuple[HexDigest, ...], MaxLen(MAX_PARTS)]
    """Root of each part of this reducer."""


@dataclass(frozen=True, slots=True)
class HeldContribution:
    """Another member's contribution as a reducer can show it: the parts that it reduces."""

    leaves: tuple[bytes, ...]
    """Root of each part of this reducer."""
    shards: tuple[bytes, ...]
    """Roots of the shards, by reducer."""
    parts: Mapping[int, Buffer]
    """As they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A reducer's pledge, and those by which it decided: a member that got other products has other coefficients, by no
    fault of the reducer."""

    pledge: Pledge
    products: Annotated[tuple[Pledge, ...], MaxLen(MAX_HOSTS)]
    """Of all reducers, in order; none under a rule that needs no products."""


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


class Notary:
    """Makes and checks the pledges of one peer's attempts, and hands out the evidence that it meets."""

    def __init__(self, own_peer: PeerId, *, sign: Sign, verify: Verify, on_evidence: Callable[[Evidence], None]) -> None:
        self._own_peer = own_peer
        self._sign = sign
        self._verify = verify
        self._on_evidence = on_evidence

    def pledge(self, spec: AllReduceSpec, kind: PledgeKind, content: Digest) -> Pledge:
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

    def compare(self, held: Sequence[Pledge], shown: Sequence[Pledge]) -> tuple[PeerId, ...]:
        """Pledges of one kind about one attempt as this peer got them, checked, and as another member reports them: the first
        of each peer. Returns the peers that signed two."""
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
    """The commitments of one attempt, on one member."""

    def __init__(self, spec: AllReduceSpec, me: int, notary: Notary) -> None:
        self.is_complete = asyncio.Event()
        """The roots of all contributors are here and, on a reducer, the hashes of all its parts."""
        self._spec, self._me = spec, me
        self._notary = notary
        self._is_here = {member: asyncio.Event() for member in spec.contributors}
        self._pledges: dict[int, Pledge] = {}
        self._leaves: dict[int, tuple[bytes, ...]] = {}
        """By contributor: roots of its parts for this reducer."""
        self._shards: dict[int, tuple[bytes, ...]] = {}
        """And of its shards, by reducer."""
        self.own_leaves: tuple[tuple[bytes, ...], ...] = ()
        """Roots of the own parts, by reducer; none of a member that only receives."""

    @property
    def roots(self) -> list[Digest]:
        """In the order of the contributors; only when complete."""
        return [self._pledges[member].content for member in self._spec.contributors]

    @property
    def missing(self) -> tuple[int, ...]:
        """Contributors that have not committed themselves here."""
        return tuple(member for member in self._spec.contributors if member not in self._leaves)

    async def wait_for(self, member: int) -> None:
        """Until this contributor has committed itself here, or, if it is this member, has hashed its parts."""
        await self._is_here[member].wait()

    def leaf(self, member: int, part: Part) -> bytes:
        """Root that a contribution to one of this reducer's parts must have; only when complete."""
        return self._leaves[member][self._spec.place_of[part.index]]

    def commit_own(self, leaves: tuple[tuple[bytes, ...], ...]) -> None:
        """Sign the root of the own parts; `leaves` are those of `OwnContribution`."""
        self.own_leaves = leaves
        root = root_of(self._spec, [tree_root(shard) for shard in leaves])
        self._put(self._me, self._notary.pledge(self._spec, "contribution", root), leaves[self._me])

    async def own_frame(self, reducer: int) -> bytes:
        """The own commitment as this reducer gets it, once it is made."""
        await self.wait_for(self._me)
        commitment = Commitment(
            pledge=self._pledges[self._me],
            shards=tuple(Digest(tree_root(shard).hex()) for shard in self.own_leaves),
            leaves=tuple(Digest(leaf.hex()) for leaf in self.own_leaves[reducer]),
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
        if not is_whole or tree_root(leaves) != shards[me] or root_of(spec, shards) != commitment.pledge.content:
            raise BadPart(member, "a commitment whose hashes are not those of its root")
        self._shards[member] = tuple(shards)
        self._put(member, commitment.pledge, leaves)

    def held_of(self, member: int, parts: Mapping[int, Buffer]) -> HeldContribution:
        """Another contributor's, as far as this reducer has it."""
        return HeldContribution(self._leaves[member], self._shards[member], parts)

    def frame(self) -> bytes:
        """All roots, as this reducer got them; only when complete."""
        return canonical.encode(Pledges(pledges=tuple(self._pledges[member] for member in self._spec.contributors)))

    def take_all(self, reducer: int, payload: bytes) -> None:
        """A reducer's list of all contributors' commitments. Raises BadPart; AveragingError where a contributor sent it another
        one."""
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
    """The pledges about inner products of one attempt's reducers, on one member. None under a rule that needs no products."""

    def __init__(self, spec: AllReduceSpec, notary: Notary) -> None:
        self._spec, self._notary = spec, notary
        self._pledges: dict[int, Pledge] = {}
        self._own = b""
        self._has_own = asyncio.Event()

    @property
    def all(self) -> tuple[Pledge, ...]:
        """In the order of the reducers; only once all are here."""
        return tuple(self._pledges[reducer] for reducer in self._spec.reducers) if self._spec.needs_gram else ()

    def sign(self, me: int, products: bytes) -> None:
        """The own ones are computed."""
        self._pledges[me] = self._notary.pledge(self._spec, "products", _content_of(products))
        pledge = canonical.encode(self._pledges[me])
        self._own = _LENGTH.pack(len(pledge)) + pledge + products
        self._has_own.set()

    async def own(self) -> bytes:
        """As the members get them, once they are signed."""
        await self._has_own.wait()
        return self._own

    def take(self, reducer: int, payload: bytes) -> bytes:
        """A reducer's products, which it signed. Raises BadPart."""
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
        return tuple(self.of(self._spec.reducers).values())

    def of(self, reducers: Sequence[int]) -> dict[int, Pledge]:
        """By reducer; only when theirs are here."""
        return {reducer: self._receipts[reducer].pledge for reducer in reducers}

    def sign(self, me: int, inputs: Digest, parts: Sequence[bytes], products: tuple[Pledge, ...]) -> None:
        """All own parts are made; `parts` are their roots."""
        pledge = self._notary.pledge(self._spec, "reduction", receipt_content(inputs, tree_root(parts)))
        self._receipts[me] = Receipt(pledge=pledge, products=products)
        self._own = canonical.encode(self._receipts[me])
        self._has_own.set()

    async def own(self) -> bytes:
        """The own receipt as the members get it, once it is signed."""
        await self._has_own.wait()
        return self._own

    def take(self, reducer: int, payload: bytes) -> None:
        """A reducer's receipt. Raises BadPart."""
        try:
            receipt = decode(Receipt, payload, max_bytes=most_pledges_bytes(1 + len(self._spec.members)))
            self._notary.check(self._spec, receipt.pledge, "reduction", self._spec.members[reducer])
        except RemoteProtocolError as error:
            raise BadPart(reducer, f"no receipt: {error}") from None
        self._receipts[reducer] = receipt

    def check(self, reducer: int, inputs: Digest, parts: Sequence[bytes], products: tuple[Pledge, ...]) -> None:
        """The receipt is about what this member decided and the parts that it holds; `parts` are their roots, `products` the
        pledges that it decided by. Raises BadPart; AveragingError where a third peer signed two different products."""
        receipt = self._receipts[reducer]
        if receipt.pledge.content == receipt_content(inputs, tree_root(parts)):
            return
        liars = self._notary.compare(products, receipt.products)
        if liars:
            raise AveragingError(f"{', '.join(liars)} signed different products for two members", suspects=liars)
        raise BadPart(reducer, "a receipt that is not about the contributions and the parts that it sent")
