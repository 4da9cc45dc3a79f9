"""The sparse codecs, which keep the largest values of each chunk, as SparseLoCo does (arXiv 2508.15706).

Places are Rice-coded (`rice.py`). A chunk of a contribution always takes 84 bytes. The mean of such vectors travels back in a
codec of its own (`sparse_mean.py`).
"""

from collections.abc import Iterator

import numpy as np
import torch

from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.rice import most_unary_bits, pack_places, remainder_bits_for, remainder_bytes, unpack_places
from adloco_p2p.numerics.sparse_mean import GROUP, SPARSE_MEAN, expected_bytes
from adloco_p2p.numerics.tensor_codec import SIZE, Buffer, TensorCodec, check_scales, claimed_size, num_blocks, padded

KEPT = 64
"""Values that are kept of a chunk of `GROUP` values."""
_SCALE_BYTES = 4


class TopKCodec:
    """The `kept` largest values of each chunk, each as its place and 2 bits; the other values become zero.

    Bytes: size; for each chunk, the last padded to a whole one, two bfloat16 scales `low` and `high`, places, values. A value
    is +-low or +-high, the mean magnitudes of the kept values up to half of the largest one and above it.
    """

    group = GROUP
    needs_feedback, is_verbatim, is_variable = True, False, False
    returns_mean = False  # the mean has 4 bits per value, whose rounding shows in its norm
    largest = float(torch.finfo(torch.bfloat16).max)

    def __init__(self, name: str, code: int, kept: int = KEPT) -> None:
        self.name, self.code, self._kept = name, code, kept
        self._remainder_bits = remainder_bits_for(kept, GROUP)
        self._unary_bytes = (most_unary_bits(kept, GROUP, self._remainder_bits) + 7) // 8
        self._place_bytes = self._unary_bytes + remainder_bytes(kept, self._remainder_bits)
        self._chunk_bytes = _SCALE_BYTES + self._place_bytes + kept // 4

    def num_bytes(self, size: int) -> int:
        return SIZE.size + num_blocks(size, GROUP) * self._chunk_bytes

    def encode(self, values: torch.Tensor) -> memoryview:
        assert values.dtype == torch.float32 and values.ndim == 1
        chunks = padded(values.numpy(), GROUP)
        magnitudes = np.abs(chunks)
        places = np.sort(np.argpartition(magnitudes, GROUP - self._kept, axis=1)[:, GROUP - self._kept :], axis=1)
        scales, codes = _two_bits(np.take_along_axis(chunks, places, axis=1))
        pieces = np.concatenate(
            [scales, pack_places(places, self._remainder_bits, unary_bytes=self._unary_bytes), codes], axis=1
        )
        return memoryview(SIZE.pack(values.numel()) + pieces.tobytes())

    def decode(self, data: Buffer) -> torch.Tensor:
        size = claimed_size(data, self.name, self.num_bytes)
        pieces = np.frombuffer(data, dtype=np.uint8, offset=SIZE.size).reshape(-1, self._chunk_bytes)
        halves = np.ascontiguousarray(pieces[:, :_SCALE_BYTES]).view("<u2").astype("<u4") << 16
        scales = halves.view("<f4")
        check_scales(scales)
        packed, codes = np.split(pieces[:, _SCALE_BYTES:], [self._place_bytes], axis=1)
        places = unpack_places(packed, self._kept, self._remainder_bits, unary_bytes=self._unary_bytes)
        if (places >= GROUP).any():
            raise RemoteProtocolError("places outside the chunk")
        two_bits = (codes[:, :, None] >> np.array([0, 2, 4, 6], dtype=np.uint8) & 3).reshape(len(codes), self._kept)
        values = np.where(two_bits >= 2, scales[:, 1:], scales[:, :1])
        chunks = np.zeros((len(pieces), GROUP), dtype=np.float32)
        np.put_along_axis(chunks, places, np.where(two_bits & 1, -values, values), axis=1)
        return torch.from_numpy(chunks.reshape(-1)[:size])

    def cuts(self, data: Buffer, size: int, length: int) -> Iterator[Buffer]:
        view = memoryview(data)
        for first in range(0, size, length):
            end = min(first + length, size)
            yield SIZE.pack(end - first) + view[self.num_bytes(first) : self.num_bytes(end)]

    @property
    def mean_codec(self) -> TensorCodec:
        return SPARSE_MEAN


def _two_bits(taken: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the scales and the 2-bit codes of the kept values [chunks, kept], both as uint8 [chunks, bytes]."""
    magnitudes = np.abs(taken)
    is_high = magnitudes > magnitudes.max(axis=1, initial=0.0, keepdims=True) / 2
    scales = np.zeros((len(taken), 2), dtype=np.float32)
    for column, members in ((0, ~is_high), (1, is_high)):
        total = np.where(members, magnitudes, 0.0).sum(axis=1, dtype=np.float64)
        scales[:, column] = total / np.maximum(members.sum(axis=1), 1)
    halves = torch.from_numpy(scales).to(torch.bfloat16).view(torch.int16).numpy().astype("<i2").view(np.uint8)
    two_bits = (is_high.astype(np.uint8) << 1 | (taken < 0)).reshape(len(taken), taken.shape[1] // 4, 4)
    return halves, (two_bits << np.array([0, 2, 4, 6], dtype=np.uint8)).sum(axis=2, dtype=np.uint8)


def typical_mean_bytes(size: int, num_contributors: int) -> float:
    """Return the expected bytes of the mean of so many `TopKCodec` vectors whose places are independent of each other. Hosts
    that train on one distribution have some places in common, so their mean takes a little less."""
    return expected_bytes(size, 1 - (1 - KEPT / GROUP) ** num_contributors)
