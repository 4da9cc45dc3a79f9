"""Evidence about sums, made the way a checker makes it, of a few float32 values."""

import base64
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adloco_p2p.core.model.hash_tree import leaf_hash, proof, shard_hash, tree_root
from adloco_p2p.core.model.ledger_entry import Pledge, ProvenSlice, WrongSum, inputs_digest, receipt_content
from adloco_p2p.core.model.scalars import Digest, PeerId

FLOAT32 = 1


def packed(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


@dataclass(frozen=True)
class Tree:
    """Of one vector: slices of two shards, by their reducers."""

    shards: dict[PeerId, list[bytes]]
    """Slices, each of two values; the shards follow each other."""

    def _leaves(self, reducer: PeerId) -> list[bytes]:
        names = list(self.shards)
        first = sum(len(self.shards[name]) for name in names[: names.index(reducer)])
        return [leaf_hash(2 * (first + at), data) for at, data in enumerate(self.shards[reducer])]

    def first(self, reducer: PeerId, index: int) -> int:
        names = list(self.shards)
        return 2 * (sum(len(self.shards[name]) for name in names[: names.index(reducer)]) + index)

    def shard(self, reducer: PeerId) -> bytes:
        return tree_root(self._leaves(reducer))

    def _tops(self) -> list[bytes]:
        return [shard_hash(name, self.shard(name)) for name in self.shards]

    @property
    def root(self) -> Digest:
        return Digest(tree_root(self._tops()).hex())

    def show(self, reducer: PeerId, index: int, *, is_result: bool = False) -> ProvenSlice:
        top = b"" if is_result else proof(self._tops(), list(self.shards).index(reducer))
        return ProvenSlice(
            data=text(self.shards[reducer][index]),
            to_shard=text(proof(self._leaves(reducer), index)),
            to_root=text(top),
        )


def wrong_sum(
    pledge: Callable[[Digest], Pledge],
    reducer: PeerId,
    index: int,
    *,
    contributions: Sequence[Tree],
    coefficients: tuple[float, ...],
    result: Tree,
) -> WrongSum:
    """About the slice of that index in the reducer's shard; `pledge` signs its receipt."""
    roots = tuple(tree.root for tree in contributions)
    inputs = inputs_digest(FLOAT32, FLOAT32, roots, coefficients)
    return WrongSum(
        receipt=pledge(receipt_content(inputs, result.shard(reducer))),
        sent_codec=FLOAT32,
        mean_codec=FLOAT32,
        roots=roots,
        coefficients=coefficients,
        first=result.first(reducer, index),
        inputs=tuple(
            tree.show(reducer, index) for tree, factor in zip(contributions, coefficients, strict=True) if factor != 0
        ),
        result=result.show(reducer, index, is_result=True),
    )


def changed_input(evidence: WrongSum, place: int, **fields: Any) -> WrongSum:
    inputs = list(evidence.inputs)
    inputs[place] = replace(inputs[place], **fields)
    return replace(evidence, inputs=tuple(inputs))
