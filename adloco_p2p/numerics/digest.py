"""Digests of flat buffers. The state of an instance is a hash tree, so that a joiner can verify every chunk it is given.

The state's chunks are those of the outer parameters followed by those of the outer momentum; none spans both.
"""

import hashlib
import struct
from collections.abc import Sequence

import torch

from adloco_p2p.core.model.types import Digest
from adloco_p2p.numerics.codecs import Buffer, TensorCodec

CHUNK_BYTES = 1 << 20
"""Bytes of one chunk of the state, and of one leaf of its tree."""


def _bytes_of(flat: torch.Tensor) -> memoryview:
    assert flat.device.type == "cpu" and flat.ndim == 1 and flat.is_contiguous(), (flat.device, flat.shape)
    return flat.detach().numpy().data.cast("B")


def tensor_digest(flat: torch.Tensor) -> Digest:
    """SHA-256 over the bytes of a flat CPU tensor (little-endian machines)."""
    return Digest(hashlib.sha256(_bytes_of(flat)).hexdigest())


def state_chunks(outer: torch.Tensor, momentum: torch.Tensor) -> list[memoryview]:
    """The state's chunks as writable views: reading serves a joiner, writing fills a state that is being fetched."""
    chunks: list[memoryview] = []
    for flat in (outer, momentum):
        view = _bytes_of(flat)
        chunks.extend(view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES))
    return chunks


def state_leaves(outer: torch.Tensor, momentum: torch.Tensor) -> tuple[Digest, ...]:
    """SHA-256 of every chunk of the state."""
    return tuple(Digest(hashlib.sha256(chunk).hexdigest()) for chunk in state_chunks(outer, momentum))


def state_root(leaves: Sequence[Digest]) -> Digest:
    """SHA-256 of the leaves, concatenated as bytes."""
    return Digest(hashlib.sha256(b"".join(bytes.fromhex(leaf) for leaf in leaves)).hexdigest())


def state_digest(outer: torch.Tensor, momentum: torch.Tensor) -> Digest:
    """Root of outer parameters and outer momentum: what reports and plans carry."""
    return state_root(state_leaves(outer, momentum))


def part_digest(data: Buffer) -> bytes:
    return hashlib.sha256(data).digest()


def result_digest(codec: TensorCodec, size: int, part_digests: Sequence[bytes]) -> Digest:
    """The digest that every host of an average must share: SHA-256 over codec, size and the SHA-256 of every encoded part, in
    order.

    A hash of hashes, so that parts are hashed while others still travel, and a repaired part is checked by itself.
    """
    head = struct.pack("<4sBQ", b"mean", codec.code, size)
    return Digest(hashlib.sha256(head + b"".join(part_digests)).hexdigest())
