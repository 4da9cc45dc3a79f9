"""The averages of simulated machines as small vectors, so that evidence can show the wrong sum of a reducer.

Every member reduces one slice of two values. The average that the machines hold (`sim/device.py`) is opaque; the wrong sum of a
reducer is derived from the wrong average that it hands out.
"""

import base64
import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adloco_p2p.core.ledger.slice_sums import combined
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.hash_tree import leaf_hash, proof, shard_hash, tree_root
from adloco_p2p.core.model.ledger_entry import Pledge, ProvenSlice, WrongSum, inputs_digest, receipt_content
from adloco_p2p.core.model.recheck_draw import drawn_parts, inspected_parts
from adloco_p2p.core.model.scalars import Digest, PeerId

RECHECK = 0.05
"""The rate at which members make parts again, which is the default of runs."""
PARTS_PER_MEMBER = 16
"""The number of parts per member in the draw; in the simulation they all stand for its one part."""
_FLOAT32, _SLICE = 1, struct.Struct("<2f")


@dataclass(frozen=True, slots=True)
class SmallAverage:
    """The small average of one attempt, from its key and the weights of its members."""

    key: Digest
    members: Mapping[PeerId, int]

    def drawn_by(self, checker: PeerId, inspected: Sequence[PeerId]) -> set[PeerId]:
        """Return the reducers of which the checker makes parts again, by the draw or as some of the `inspected` ones."""
        names = [peer for peer in sorted(self.members) for _ in range(PARTS_PER_MEMBER)]
        others = [part for part, name in enumerate(names) if name != checker]
        secret = canonical.digest(["draw", self.key, checker]).encode("ascii")
        drawn = drawn_parts(secret, others, rate=RECHECK, num_parts=len(names), num_members=len(self.members))
        shards = [[part for part in others if names[part] == reducer] for reducer in inspected]
        return {names[part] for part in (*drawn, *inspected_parts(secret, shards))}

    def receipt_content(self, reducer: PeerId, wrong: Digest | None) -> Digest:
        """Return the content of a reducer's receipt for the right sum, or for that of a `wrong` average."""
        inputs = inputs_digest(_FLOAT32, _FLOAT32, self._roots, self._coefficients)
        return receipt_content(inputs, leaf_hash(self._first(reducer), self._result(reducer, wrong)))

    def evidence(self, receipt: Pledge, wrong: Digest | None) -> WrongSum:
        """Return the evidence that a checker can show about the reducer of this receipt."""
        reducer, place = receipt.peer, sorted(self.members).index(receipt.peer)
        return WrongSum(
            receipt=receipt,
            sent_codec=_FLOAT32,
            mean_codec=_FLOAT32,
            roots=self._roots,
            coefficients=self._coefficients,
            first=self._first(reducer),
            inputs=tuple(
                ProvenSlice(data=_text(self._sent(peer, reducer)), to_shard="", to_root=_text(proof(self._tops(peer), place)))
                for peer in sorted(self.members)
            ),
            result=ProvenSlice(data=_text(self._result(reducer, wrong)), to_shard=""),
        )

    @property
    def _coefficients(self) -> tuple[float, ...]:
        total = sum(self.members.values())
        return tuple(self.members[peer] / total for peer in sorted(self.members))

    @property
    def _roots(self) -> tuple[Digest, ...]:
        return tuple(Digest(tree_root(self._tops(peer)).hex()) for peer in sorted(self.members))

    def _first(self, reducer: PeerId) -> int:
        return 2 * sorted(self.members).index(reducer)

    def _tops(self, peer: PeerId) -> list[bytes]:
        names = sorted(self.members)
        return [shard_hash(name, leaf_hash(self._first(name), self._sent(peer, name))) for name in names]

    def _sent(self, peer: PeerId, reducer: PeerId) -> bytes:
        drawn = hashlib.sha256(canonical.encode([self.key, peer, reducer])).digest()
        return _SLICE.pack(drawn[0] / 16 - 8, drawn[1] / 16 - 8)

    def _result(self, reducer: PeerId, wrong: Digest | None) -> bytes:
        vectors = [_SLICE.unpack(self._sent(peer, reducer)) for peer in sorted(self.members)]
        one, other = combined(vectors, self._coefficients)
        return _SLICE.pack(one + (1 + int(wrong[:4], 16) if wrong else 0), other)


def small_average(effect: Average) -> SmallAverage:
    return SmallAverage(effect.key, {peer: weight for peer, weight in effect.weights if weight > 0})


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
