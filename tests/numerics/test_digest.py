"""Digests of vectors and of an instance's state."""

import hashlib

import pytest
import torch

from adloco_p2p.numerics.digest import (
    CHUNK_BYTES,
    StateHashing,
    blob_root,
    state_chunks,
    state_digest,
    state_digests,
    state_index,
    tensor_digest,
)
from adloco_p2p.training.hosted_instances import STATE_DTYPES

NUM_PARAMETERS = CHUNK_BYTES // 4 * 2 + 5


def state(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUM_PARAMETERS, generator=generator), torch.randn(NUM_PARAMETERS, generator=generator)


@pytest.mark.parametrize("size", [1, 5, CHUNK_BYTES // 4, CHUNK_BYTES // 4 + 1])
def test_both_digests_of_a_state_are_the_roots_of_its_parts(size: int) -> None:
    outer, momentum = torch.arange(float(size)), torch.ones(size)
    assert state_digests(outer, momentum) == (state_digest(outer, torch.zeros(0)), state_digest(outer, momentum))


@pytest.mark.parametrize("dtypes", STATE_DTYPES.values(), ids=STATE_DTYPES)
@pytest.mark.parametrize("piece", [1 << 17, 100_000, NUM_PARAMETERS])
def test_a_state_is_hashed_while_it_is_written(dtypes: tuple[torch.dtype, torch.dtype], piece: int) -> None:
    """Whatever is there early: what is not said to be written may change."""
    final = tuple(vector.to(dtype) for vector, dtype in zip(state(2), dtypes, strict=True))
    outer, momentum = (torch.zeros_like(vector) for vector in final)
    with StateHashing(outer, momentum) as hashing:
        for first in range(0, NUM_PARAMETERS, piece):
            for vector, values in zip((outer, momentum), final, strict=True):
                vector[first : first + piece] = values[first : first + piece]
            hashing.written(min(first + piece, NUM_PARAMETERS))
        assert hashing.digests() == state_digests(*final)


def test_tensor_digest_is_sha256_of_the_bytes() -> None:
    vector = torch.tensor([1.0, -2.0])
    assert tensor_digest(vector) == hashlib.sha256(bytes.fromhex("0000803f000000c0")).hexdigest()


def test_state_root_is_the_hash_of_an_index_of_lengths_and_hashes() -> None:
    outer, momentum = state(1)
    chunks = []
    for data in (outer.numpy().tobytes(), momentum.numpy().tobytes()):
        chunks += [data[i : i + CHUNK_BYTES] for i in range(0, len(data), CHUNK_BYTES)]
    assert len(chunks) == 6
    index = bytes(1) + b"".join(len(chunk).to_bytes(4, "little") + hashlib.sha256(chunk).digest() for chunk in chunks)
    assert state_index(outer, momentum) == index
    assert state_digest(outer, momentum) == hashlib.sha256(index).hexdigest()


def test_one_bit_anywhere_changes_the_root_and_one_entry() -> None:
    outer, momentum = state(1)
    before = state_index(outer, momentum)
    momentum.view(torch.int32)[-1] ^= 1
    after = state_index(outer, momentum)
    entries = [(before[i : i + 36], after[i : i + 36]) for i in range(1, len(before), 36)]
    assert [left == right for left, right in entries] == [True] * 5 + [False]
    assert blob_root(before) != blob_root(after)


def test_outer_and_momentum_are_not_interchangeable() -> None:
    outer, momentum = state(1)
    assert state_digest(outer, momentum) != state_digest(momentum, outer)


def test_a_fetched_state_is_filled_chunk_by_chunk() -> None:
    outer, momentum = state(1)
    copies = torch.zeros_like(outer), torch.zeros_like(momentum)
    for source, target in zip(state_chunks(outer, momentum), state_chunks(*copies), strict=True):
        target[:] = bytes(source)
    assert state_digest(*copies) == state_digest(outer, momentum)
