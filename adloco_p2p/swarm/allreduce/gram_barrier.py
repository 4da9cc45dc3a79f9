"""The barrier of one attempt: the rule decides when all contributions are complete, and only then are parts reduced.

Every reducer computes the inner products of the contributions in its own parts and sends them to all members. A member that has
those of all reducers adds them up and asks the rule, so it has the same coefficients as every member that got the same bytes. A
hash of these bytes and of all commitments (`pledges.py`), and the hosts that were left out, are part of the result's digest
(`binding`). So hosts that were sent different bytes cannot commit one average, and a host that fetches the result learns whose
contributions are in it. A rule that needs no products decides before anything is sent.
"""

import asyncio
import hashlib
import struct
from collections.abc import Sequence

from adloco_p2p.core.model.scalars import MAX_HOSTS, Digest, PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.aggregation.gram import checked_partial_gram, packed_size, summed_gram
from adloco_p2p.numerics.aggregation.rule import Decision, Gram
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec

_HASH_BYTES = 32


def encode_products(packed: Sequence[float]) -> bytes:
    """Encode a packed Gram matrix as little-endian float64."""
    return struct.pack(f"<{len(packed)}d", *packed)


def decode_products(payload: bytes, num_hosts: int) -> tuple[float, ...]:
    """Decode and check the packed Gram matrix of so many hosts. Raises RemoteProtocolError."""
    count = packed_size(num_hosts)
    if len(payload) != 8 * count:
        raise RemoteProtocolError(f"inner products of {len(payload)} bytes, {8 * count} needed")
    return checked_partial_gram(struct.unpack(f"<{count}d", payload), num_hosts)


def diagonal_of(payload: bytes, num_hosts: int) -> tuple[float, ...]:
    """Return the squared norms in an encoded packed matrix. Raises RemoteProtocolError."""
    packed = decode_products(payload, num_hosts)
    return tuple(packed[packed_size(host + 1) - 1] for host in range(num_hosts))


def _encode_left_out(contributors: Sequence[PeerId], decision: Decision) -> bytes:
    left_out = {contributors[place] for place in decision.left_out}
    bits = sum(1 << place for place, peer in enumerate(sorted(contributors)) if peer in left_out)
    return bits.to_bytes((len(contributors) + 7) // 8, "little")


def is_binding(data: bytes) -> bool:
    """Return whether this may be a binding: a hash and, if the rule needed the Gram matrix, a bit per contributor."""
    return _HASH_BYTES <= len(data) <= _HASH_BYTES + MAX_HOSTS // 8


def has_judged(binding: bytes) -> bool:
    """Return whether the rule used the Gram matrix of the result's contributions."""
    return len(binding) > _HASH_BYTES


def left_out_by(binding: bytes, contributors: Sequence[PeerId]) -> tuple[PeerId, ...]:
    """Return the contributors whose vectors are not in the result, sorted."""
    bits = int.from_bytes(binding[_HASH_BYTES:], "little")
    return tuple(peer for place, peer in enumerate(sorted(contributors)) if bits >> place & 1)


class GramBarrier:
    """Collects the inner products of one attempt and decides once."""

    def __init__(self, spec: AllReduceSpec) -> None:
        self._spec = spec
        self._payloads: dict[int, bytes] = {}
        """Encoded inner products, by reducer."""
        self.gram: Gram | None = None
        self.decision: Decision | None = None
        self.is_decided = asyncio.Event()
        if not spec.needs_gram:
            self.decision = spec.rule.decide(None, spec.contributor_weights, spec.contributor_steps)
            self.is_decided.set()

    @property
    def missing(self) -> tuple[int, ...]:
        """The reducers whose inner products are awaited."""
        return () if self.decision else tuple(reducer for reducer in self._spec.reducers if reducer not in self._payloads)

    def put(self, reducer: int, payload: bytes) -> None:
        """Take a reducer's inner products, and decide once all are here. Raises RemoteProtocolError."""
        decode_products(payload, len(self._spec.contributors))
        self._payloads[reducer] = payload
        if not self.missing and self.decision is None:
            self._decide()

    def _decide(self) -> None:
        spec, payloads = self._spec, [self._payloads[reducer] for reducer in self._spec.reducers]
        num_hosts = len(spec.contributors)
        self.gram = summed_gram([decode_products(payload, num_hosts) for payload in payloads], num_hosts)
        self.decision = spec.rule.decide(self.gram, spec.contributor_weights, spec.contributor_steps)
        self.is_decided.set()

    def binding(self, roots: Sequence[Digest]) -> bytes:
        """Return the binding of the result. Only once decided.

        It is the SHA-256 of the contributors' roots and of all products, or of the decision that is completed. Where there are
        products or such a decision, a bit for each contributor, sorted, follows, which is set if that one was left out.
        """
        assert self.decision is not None
        spec = self._spec
        payloads = [self._payloads[reducer] for reducer in spec.reducers] if spec.needs_gram else []
        if spec.completes is not None:
            payloads.append(bytes.fromhex(spec.completes))
        hashed = hashlib.sha256(b"".join([bytes.fromhex("".join(roots)), *payloads])).digest()
        names = [spec.members[member] for member in spec.contributors]
        return hashed + (_encode_left_out(names, self.decision) if payloads else b"")
