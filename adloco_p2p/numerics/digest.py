"""Digests of flat buffers. A blob that peers fetch from each other has an index, which lists its chunks, and a root, the hash
of the index, so that every chunk can be verified on arrival.

The chunks of a state are those of the outer parameters followed by those of the outer momentum; no chunk spans both.
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
"""One entry of an index: length and SHA-256 of a chunk."""

_HASHING_THREADS = 4
_RESULT_HEAD = struct.Struct("<4sBQ")
RESULT_HEAD_BYTES = _RESULT_HEAD.size


def _bytes_of(flat: torch.Tensor) -> memoryview:
    assert flat.device.type == "cpu" and flat.ndim == 1 and flat.is_contiguous(), (flat.device, flat.shape)
    return flat.detach().view(torch.uint8).numpy().data


def tensor_digest(flat: torch.Tensor) -> Digest:
    """Return the SHA-256 of the bytes of a flat CPU tensor, which are little-endian."""
    return Digest(hashlib.sha256(_bytes_of(flat)).hexdigest())


def state_chunks(outer: torch.Tensor, momentum: torch.Tensor) -> list[memoryview]:
    """Return the state's chunks as writable views: a donor reads them to serve, a fetcher writes them as they arrive."""
    chunks: list[memoryview] = []
    for flat in (outer, momentum):
        view = _bytes_of(flat)
        chunks.extend(view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES))
    return chunks


def blob_index(head: bytes, chunks: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the index of a blob: a head of at most 255 bytes that its kind defines, then length and SHA-256 of every chunk."""
    return b"".join((bytes([len(head)]), head, *(CHUNK_ENTRY.pack(*chunk) for chunk in chunks)))


def blob_root(index: bytes) -> Digest:
    """Return the root of a blob, by which peers agree on it and ask for it."""
    return Digest(hashlib.sha256(index).hexdigest())


def state_index(outer: torch.Tensor, momentum: torch.Tensor) -> bytes:
    """Return the index of a state, outer parameters and outer momentum, as a blob without a head."""
    return blob_index(b"", ((len(chunk), chunk_digest(chunk)) for chunk in state_chunks(outer, momentum)))


def state_digest(outer: torch.Tensor, momentum: torch.Tensor) -> Digest:
    """Return the root of a state, outer parameters and outer momentum, which reports and plans carry."""
    return blob_root(state_index(outer, momentum))


class StateHashing:
    """Hashes a state in threads while it is being written, because the device waits for the digests.

    Every byte is hashed once. Leaving the `with` block ends the threads, also where the digests are not needed any more.
    """

    def __init__(self, outer: torch.Tensor, momentum: torch.Tensor) -> None:
        """Both vectors have the same size [P]; their values are read only after `written` reports them."""
        assert len(outer) == len(momentum)
        self._size = len(outer)
        self._views = state_chunks(outer, momentum)
        self._num_outer = -(-outer.nbytes // CHUNK_BYTES)
        self._vectors = ((0, self._num_outer, outer.itemsize), (self._num_outer, len(self._views), momentum.itemsize))
        """For parameters and momentum, which may differ in type: first chunk, end of the chunks, bytes per value."""
        self._begun = [0, self._num_outer]
        """For each vector, the first chunk that no thread has been given yet."""
        self._hashes: dict[int, Future[bytes]] = {}
        self._pool = ThreadPoolExecutor(min(_HASHING_THREADS, os.cpu_count() or 1), thread_name_prefix="hash")

    def __enter__(self) -> "StateHashing":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def written(self, size: int) -> None:
        """Report that the first `size` values of both vectors are final."""
        for vector, (first, end, item) in enumerate(self._vectors):
            whole = end if size == self._size else first + size * item // CHUNK_BYTES
            for place in range(self._begun[vector], whole):
                self._hashes[place] = self._pool.submit(chunk_digest, self._views[place])
            self._begun[vector] = whole

    def digests(self) -> tuple[Digest, Digest]:
        """Return the roots of the outer parameters alone and of the state; all of it must have been written."""
        chunks = [(len(view), self._hashes[place].result()) for place, view in enumerate(self._views)]
        of_outer = chunks[: self._num_outer]
        return blob_root(blob_index(b"", of_outer)), blob_root(blob_index(b"", chunks))


def state_digests(outer: torch.Tensor, momentum: torch.Tensor) -> tuple[Digest, Digest]:
    """Return the roots of the outer parameters alone and of the state."""
    with StateHashing(outer, momentum) as hashing:
        hashing.written(len(outer))
        return hashing.digests()


def chunk_digest(data: Buffer) -> bytes:
    return hashlib.sha256(data).digest()


def result_index(codec: TensorCodec, size: int, parts: Iterable[tuple[int, bytes]], *, binding: bytes = b"") -> bytes:
    """Return the index of an average of `size` values, a blob whose head names the codec and whose chunks are encoded parts.

    Parts are hashed while others still travel, and a repaired part is verified on its own. All hosts of an average must have
    the same root. `binding` identifies the decision of the average, if there was one.
    """
    return blob_index(result_head(codec, size) + binding, parts)


def result_head(codec: TensorCodec, size: int) -> bytes:
    """Return the part of a head that a fetcher can compute beforehand."""
    return _RESULT_HEAD.pack(b"mean", codec.code, size)
