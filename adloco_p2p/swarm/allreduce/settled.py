"""An ended average as one member keeps it, to show its own parts with their proofs, and to prove a reducer's wrong sum."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch
from annotated_types import MaxLen

from adloco_p2p.core.model.hash_tree import LEAST_VALUE, SCALE_ROUNDING, climb, proof, shard_hash, tree_root
from adloco_p2p.core.model.ledger_entry import MAX_WAY_TEXT, Pledge, ProvenSlice, WrongSum
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import AveragingError, RemoteProtocolError
from adloco_p2p.numerics.codecs import SignCodec, fits
from adloco_p2p.numerics.part_tree import part_leaves, slices
from adloco_p2p.numerics.reduction import BadPart, combination
from adloco_p2p.numerics.tensor_codec import Buffer, TensorCodec
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.own_contribution import sent_root
from adloco_p2p.swarm.allreduce.pledges import HeldContribution

MAX_PROOF_BYTES = 2 * MAX_WAY_TEXT + 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PartProof:
    """The hash paths from the root of a part to that of its shard, and from there to the root of a contribution, in base64."""

    to_shard: Annotated[str, MaxLen(MAX_WAY_TEXT)]
    to_root: Annotated[str, MaxLen(MAX_WAY_TEXT)]


@dataclass(frozen=True, slots=True)
class ShownPart:
    """An encoded part of a contribution, and the proof that it belongs to it."""

    data: Buffer
    proof: PartProof


@dataclass(frozen=True, kw_only=True, eq=False)
class Settled:
    """The data that a member keeps of an ended average, to make any part again and to prove a wrong one."""

    spec: AllReduceSpec
    me: int
    coefficients: tuple[float, ...]
    divisors: tuple[float, ...] = ()
    """The divisors of the rule's `Decision`."""
    roots: tuple[Digest, ...]
    """The roots of the contributions, in the order of the contributors."""
    receipts: Mapping[int, Pledge]
    """The reducers' receipts, without those of reducers that a completed attempt has lost."""
    result_roots: Sequence[bytes]
    """The roots of the parts of the result."""
    own_leaves: tuple[tuple[bytes, ...], ...]
    """The roots of the own parts, by reducer; empty for a member that only received."""
    own: Sequence[Buffer]
    """The own encoded parts, by index, in the memory that they were sent from; empty for a member that only received."""
    seconds: float = 0.0
    """The duration of the attempt here."""
    gone: frozenset[int] = frozenset()
    """Contributors that died before the attempt was completed, so that reducers show their parts."""
    held: Mapping[int, HeldContribution] = field(default_factory=dict)
    """The contributions of members that are gone, as far as this member reduces them."""

    def share_of(self, peer: PeerId) -> tuple[float, float]:
        """Return the coefficient of the peer's contribution, and the sum of all. Raises AveragingError if it has none."""
        spec = self.spec
        places = {spec.members[member]: place for place, member in enumerate(spec.contributors)}
        if peer not in places:
            raise AveragingError(f"{peer} has no contribution in that average")
        return self.coefficients[places[peer]], sum(self.coefficients)

    def own_part(self, part: Part) -> ShownPart:
        shards = [tree_root(shard) for shard in self.own_leaves]
        return self._shown(part, self.own[part.index], self.own_leaves[self.spec.reducer_of[part.index]], shards)

    def part_of(self, place: int, part: Part) -> ShownPart | None:
        """Return the part of the contributor at that place, if this member can show it."""
        member = self.spec.contributors[place]
        if member == self.me:
            return self.own_part(part) if self.own else None
        held = self.held.get(member)
        if held is None or part.index not in held.parts:
            return None
        return self._shown(part, held.parts[part.index], held.leaves, held.shards)

    def _shown(self, part: Part, data: Buffer, leaves: Sequence[bytes], shards: Sequence[bytes]) -> ShownPart:
        reducer = self.spec.reducer_of[part.index]
        within = proof(leaves, self.spec.place_of[part.index])
        named = [shard_hash(peer, shard) for peer, shard in zip(self.spec.members, shards, strict=True)]
        return ShownPart(data, PartProof(to_shard=_text(within), to_root=_text(proof(named, reducer))))

    def checked(self, place: int, part: Part, shown: ShownPart) -> ShownPart:
        """Return a part after checking that it belongs to the contribution at that place. Raises RemoteProtocolError."""
        reducer = self.spec.members[self.spec.reducer_of[part.index]]
        try:
            shard = climb(sent_root(self.spec, part, shown.data), base64.b64decode(shown.proof.to_shard, validate=True))
            root = climb(shard_hash(reducer, shard), base64.b64decode(shown.proof.to_root, validate=True))
        except ValueError as error:
            raise RemoteProtocolError(f"a proof that is none: {error}") from None
        if root.hex() != self.roots[place]:
            raise RemoteProtocolError("a part that its sender did not commit itself to")
        return shown

    def wrong_sum(self, part: Part, shown: Sequence[ShownPart], result: bytes) -> WrongSum | None:
        """Return evidence that the encoded part `result` does not follow from the parts shown of all contributors with a
        coefficient above 0; None where it does."""
        spec = self.spec
        taken = [place for place, factor in enumerate(self.coefficients) if factor != 0]
        factors = [self.coefficients[place] for place in taken]
        divisors = [self.divisors[place] for place in taken if self.divisors]
        given = self._cuts(spec.mean_codec, result, part)
        sent = [self._cuts(spec.codec, item.data, part) for item in shown]
        for index, (first, cut) in enumerate(given):
            size = min(spec.slice_values, part.first + part.size - first)
            average = _combined(spec, [inputs[index][1] for inputs in sent], factors, divisors, size)
            if _is_wrong(spec, average, cut):
                return self._evidence(part, shown, result, index)
        return None

    def _evidence(self, part: Part, shown: Sequence[ShownPart], result: bytes, index: int) -> WrongSum:
        spec, reducer = self.spec, self.spec.reducer_of[part.index]
        within = proof([self.result_roots[other.index] for other in spec.shards[reducer]], spec.place_of[part.index])
        inputs = tuple(
            self._proven(spec.codec, item.data, part, index, base64.b64decode(item.proof.to_shard), item.proof.to_root)
            for item in shown
        )
        return WrongSum(
            receipt=self.receipts[reducer],
            sent_codec=spec.codec.code,
            mean_codec=spec.mean_codec.code,
            roots=self.roots,
            coefficients=self.coefficients,
            divisors=self.divisors,
            first=self._cuts(spec.mean_codec, result, part)[index][0],
            inputs=inputs,
            result=self._proven(spec.mean_codec, result, part, index, within, ""),
        )

    def _cuts(self, codec: TensorCodec, data: Buffer, part: Part) -> list[tuple[int, Buffer]]:
        return list(slices(codec, data, first=part.first, size=part.size, length=self.spec.slice_values))

    def _proven(self, codec: TensorCodec, data: Buffer, part: Part, index: int, way: bytes, to_root: str) -> ProvenSlice:
        """Return one slice with its proof; `way` is the path from the root of the part to that of its shard."""
        leaves = part_leaves(codec, data, first=part.first, size=part.size, length=self.spec.slice_values)
        cut = bytes(self._cuts(codec, data, part)[index][1])
        return ProvenSlice(data=_text(cut), to_shard=_text(proof(leaves, index) + way), to_root=to_root)


def _combined(
    spec: AllReduceSpec, sent: Sequence[Buffer], factors: Sequence[float], divisors: Sequence[float], size: int
) -> torch.Tensor | None:
    """Return the `combination` of the slices; None where an honest reducer would not have accepted the committed bytes."""
    try:
        return combination(spec.codec, list(enumerate(sent)), factors, size, divisors=divisors)
    except BadPart:
        return None


def _is_wrong(spec: AllReduceSpec, average: torch.Tensor | None, given: Buffer) -> bool:
    """Return whether the result is wrong, by the judgement of the ledger (`core/ledger/evidence.py`)."""
    mean = spec.mean_codec
    if average is None:
        return True
    if not fits(mean, average):
        return False  # the true average cannot be encoded
    wanted, have = mean.decode(mean.encode(average)), mean.decode(given)
    if isinstance(mean, SignCodec) and len(wanted) == len(have):  # a scale is a sum whose order depends on the machine
        return not torch.allclose(wanted, have, rtol=SCALE_ROUNDING, atol=LEAST_VALUE)
    return wanted.tolist() != have.tolist()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
