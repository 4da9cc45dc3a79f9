"""Digests of flat buffers. Peers fetch blobs from each other, each with a hash tree: an index of chunks, and its hash as the
root, so that every chunk that comes can be verified by itself.

The state's chunks are those of the outer parameters followed by those of the outer momentum; none spans both.
"""

import hashlib
import os
import struct
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.numerics.tensor_codec import Buffer, TensorCodec

CHUNK_BYTES = 1 << 20
"""Bytes of one chunk of the state."""
CHUNK_ENTRY = struct.Struct("<I32s")
"""Of an index: length and SHA-256 of a chunk."""

_HASHING_THREADS = 4
_RESULT_HEAD = struct.Struct("<4sBQ")
RESULT_HEAD_BYTES = _RESULT_HEAD.size


def _bytes_of(flat: torch.Tensor) -> memoryview:
    assert flat.device.type == "cpu" and flat.ndim == 1 and flat.is_contiguous(), (flat.device, flat.shape)
    return flat.detach().view(torch.uint8).numpy().data


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


def blob_index(head: bytes, chunks: Iterable[tuple[int, bytes]]) -> bytes:
    """The index of a blob: a head of at most 255 bytes that its kind chooses, then length and SHA-256 of every chunk."""
    return b"".join((bytes([len(head)]), head, *(CHUNK_ENTRY.pack(*chunk) for chunk in chunks)))


def blob_root(index: bytes) -> Digest:
    """The root of a blob, by which peers agree on it and ask for it."""
    return Digest(hashlib.sha256(index).hexdigest())


def state_index(outer: torch.Tensor, momentum: torch.Tensor) -> bytes:
    """Of outer parameters and outer momentum, as a blob without a head."""
    return blob_index(b"", ((len(chunk), chunk_digest(chunk)) for chunk in state_chunks(outer, momentum)))


def state_digest(outer: torch.Tensor, momentum: torch.Tensor) -> Digest:
    """Root of outer parameters and outer momentum: what reports and plans carry."""
    return blob_root(state_index(outer, momentum))


class StateHashing:
    """The digests of a state while it is being written, by threads beside the writer: the device waits for them.

    Every byte is hashed once. `with` ends the threads, also where the digests are not needed any more.
    """

    def __init__(self, outer: torch.Tensor, momentum: torch.Tensor) -> None:
        """Of the same size [P]; without values until `written` reports them."""
        assert len(outer) == len(momentum)
        self._size = len(outer)
        self._views = state_chunks(outer, momentum)
        self._num_outer = -(-outer.nbytes // CHUNK_BYTES)
        self._vectors = ((0, self._num_outer, outer.itemsize), (self._num_outer, len(self._views), momentum.itemsize))
        """Of outer parameters and momentum, which may differ in type: first chunk, the one after the last, bytes of a value."""
        self._begun = [0, self._num_outer]
        """Chunks before these are hashed, or being hashed, by vector."""
        self._hashes: dict[int, Future[bytes]] = {}
        self._pool = ThreadPoolExecutor(min(_HASHING_THREADS, os.cpu_count() or 1), thread_name_prefix="hash")

    def __enter__(self) -> "StateHashing":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def written(self, size: int) -> None:
        """The first `size` values of both vectors are there, for good."""
        for vector, (first, end, item) in enumerate(self._vectors):
            whole = end if size == self._size else first + size * item // CHUNK_BYTES
            for place in range(self._begun[vector], whole):
                self._hashes[place] = self._pool.submit(chunk_digest, self._views[place])
            self._begun[vector] = whole

    def digests(self) -> tuple[Digest, Digest]:
        """Root of the outer parameters alone, and of the state, once all of it is written."""
        chunks = [(len(view), self._hashes[place].result()) for place, view in enumerate(self._views)]
        of_outer = chunks[: self._num_outer]
        return blob_root(blob_index(b"", of_outer)), blob_root(blob_index(b"", chunks))


def state_digests(outer: torch.Tensor, momentum: torch.Tensor) -> tuple[Digest, Digest]:
    """Root of the outer parameters alone, and of the state."""
    with StateHashing(outer, momentum) as hashing:
        hashing.written(len(outer))
        return hashing.digests()


def chunk_digest(data: Buffer) -> bytes:
    return hashlib.sha256(data).digest()


def result_index(codec: TensorCodec, size: int, parts: Iterable[tuple[int, bytes]], *, binding: bytes = b"") -> bytes:
    """Of an average of so many values, as a blob whose head names the encoding and whose chunks are the encoded parts.

    A table of hashes, so that parts are hashed while others still travel, and a repaired part is checked by itself. Its root is
    what every host of an average must share. `binding` identifies the decision of the average, if there was one.
    """
    return blob_index(result_head(codec, size) + binding, parts)


def result_head(codec: TensorCodec, size: int) -> bytes:
    """The part of a head that a fetcher can compute beforehand."""
    return _RESULT_HEAD.pack(b"mean", codec.code, size)
