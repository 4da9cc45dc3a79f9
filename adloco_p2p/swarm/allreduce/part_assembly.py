"""The result of one attempt on this member, part by part: averaged values, encoded bytes, hashes and the own residual."""

import numpy as np
import torch

from adloco_p2p.numerics.codecs import values_in
from adloco_p2p.numerics.digest import chunk_digest
from adloco_p2p.numerics.reduction import part_statistics
from adloco_p2p.numerics.tensor_codec import encoded_length
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.own_contribution import OwnContribution, mean_root


class PartAssembly:
    """The buffers of a result, as large as the model: nothing may hold them in a reference cycle. `settle` runs in worker
    threads, for different parts at the same time."""

    def __init__(
        self,
        spec: AllReduceSpec,
        own: OwnContribution | None,
        *,
        encoded: np.ndarray,
    ) -> None:
        """`own` is this member's contribution, None for a receiver. `encoded`, uint8 [most bytes of all parts], gets filled."""
        self.encoded = encoded
        self.averaged = values_in(spec.mean_codec, encoded, spec.size)
        """The averaged vector, float32 [P]."""
        self.digests: list[bytes] = [b""] * spec.num_parts
        """The SHA-256 of every encoded part."""
        self.roots: list[bytes] = [b""] * spec.num_parts
        """The root of every part's slices, which its reducer signs in the receipt."""
        self.sums: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)] * spec.num_parts
        """The `part_statistics` of every part; zeros where the Gram matrix gives the statistics."""
        self.residual = torch.empty(spec.size) if own is not None and spec.codec.needs_feedback else None
        self._spec = spec
        self._own = own

    def room(self, part: Part) -> memoryview:
        """Return the memory for an encoded part."""
        return self.encoded.data[part.offset : part.offset + part.num_bytes]

    def data(self, part: Part) -> memoryview:
        """Return an encoded part, whose bytes are in its room. Raises RemoteProtocolError."""
        room = self.room(part)
        return room[: self.length(part, room)]

    def length(self, part: Part, data: memoryview) -> int:
        """Return the length in bytes of the encoded part at the start of `data`. Raises RemoteProtocolError."""
        return encoded_length(self._spec.mean_codec, data, part.size)

    def packed(self) -> tuple[np.ndarray, list[int]]:
        """Return all encoded parts without gaps, uint8, and the length of each. Only once all are here."""
        data = [self.data(part) for part in self._spec.parts]
        is_dense = not self._spec.mean_codec.is_variable
        return self.encoded if is_dense else np.frombuffer(b"".join(data), dtype=np.uint8), list(map(len, data))

    def settle(self, part: Part, values: torch.Tensor) -> None:
        """Put a decoded part in place, hash its bytes, which are in its room, and compute its share of residual and sums."""
        if not self._spec.mean_codec.is_verbatim:
            self.averaged[part.first : part.first + part.size] = values
        self.digests[part.index] = chunk_digest(self.data(part))
        self.roots[part.index] = mean_root(self._spec, part, self.data(part))
        transmitted = None
        if self._own is not None and (self.residual is not None or not self._spec.needs_gram):
            transmitted = self._spec.codec.decode(self._own.encoded(part))
            if self.residual is not None:
                torch.sub(self._own.values(part), transmitted, out=self.residual[part.first : part.first + part.size])
        if not self._spec.needs_gram:
            self.sums[part.index] = part_statistics(transmitted, values)

    def take_back(self) -> None:
        """Make the whole own vector the residual, because the rule left this member out; if a residual is kept at all."""
        if self.residual is not None and self._own is not None:
            self._own.copy_to(self.residual)

    def release(self) -> None:
        """Release the own contribution."""
        self._own = None
