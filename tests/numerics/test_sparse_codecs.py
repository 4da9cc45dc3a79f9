"""Places as Rice codes, vectors of few values and their means: by hand, by a slow decoder, and within their bounds."""

import math
import struct
import tracemalloc
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adloco_p2p.core.ledger import slice_sums
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.codecs import bytes_each_way, codec_named
from adloco_p2p.numerics.rice import (
    most_bytes,
    most_unary_bits,
    pack_places,
    remainder_bits_for,
    remainder_bytes,
    unpack_places,
)
from adloco_p2p.numerics.sparse_codecs import TopKCodec
from adloco_p2p.numerics.sparse_mean import SPARSE_MEAN
from adloco_p2p.numerics.tensor_codec import encoded_length

TOPK2 = codec_named("topk2")


def slowly_packed(places: list[int], remainder_bits: int) -> str:
    """Unary codes and rests as text, one letter a bit."""
    gaps = [place - before - 1 for before, place in zip([-1, *places], places, strict=False)]
    unary = "".join("0" * (gap >> remainder_bits) + "1" for gap in gaps)
    rests = "".join(format(gap % (1 << remainder_bits), f"0{remainder_bits}b")[::-1] if remainder_bits else "" for gap in gaps)
    return unary.ljust(-(-len(unary) // 8) * 8, "0") + rests.ljust(-(-len(rests) // 8) * 8, "0")


@pytest.mark.parametrize("kept", [64, 256, 1024])
def test_the_largest_values_of_a_chunk_arrive(kept: int) -> None:
    values = torch.randn(2 * 4096 + 100, generator=torch.Generator().manual_seed(3))
    codec = TopKCodec("topk2", 9, kept)
    data = codec.encode(values)
    arrived = codec.decode(data)
    for got, chunk in zip(arrived.split(4096)[:2], values.split(4096)[:2], strict=True):
        places = chunk.abs().topk(kept).indices.sort().values
        assert torch.equal(got.nonzero().flatten(), places)
        assert torch.equal(got[places].sign(), chunk[places].sign())
    assert len(data) == codec.num_bytes(len(values))


def test_places_by_hand() -> None:
    """Gaps 3, 0 and 9 with k 2: quotients 0, 0 and 2, rests 3, 0 and 1."""
    packed = pack_places(np.array([[3, 4, 14]]), 2)
    assert packed.tolist() == [[0b10011, 0b010011]]
    assert unpack_places(packed, 3, 2, unary_bytes=1).tolist() == [[3, 4, 14]]


@settings(max_examples=80, deadline=None)
@given(places=st.sets(st.integers(0, 4095), min_size=1, max_size=400).map(sorted))
def test_places_come_back_within_the_bounds(places: list[int]) -> None:
    remainder_bits = remainder_bits_for(len(places), 4096)
    packed = pack_places(np.array([places]), remainder_bits)
    assert "".join(format(byte, "08b")[::-1] for byte in packed[0].tolist()) == slowly_packed(places, remainder_bits)
    unary_bytes = packed.shape[1] - remainder_bytes(len(places), remainder_bits)
    assert 8 * unary_bytes <= most_unary_bits(len(places), 4096, remainder_bits) + 7 and packed.shape[1] <= most_bytes(4096)
    assert unpack_places(packed, len(places), remainder_bits, unary_bytes=unary_bytes).tolist() == [places]


def test_no_other_k_has_a_smaller_worst_case() -> None:
    """Of all sets of so many of 9 places, with every k."""
    for count in range(1, 10):
        worst = []
        for bits in range(4):
            sets = [np.array(places) for places in combinations(range(9), count)]
            unary = [int(((np.diff(places, prepend=-1) - 1) >> bits).sum()) + count for places in sets]
            assert max(unary) == most_unary_bits(count, 9, bits)
            worst.append(max(unary) + count * bits)
        assert remainder_bits_for(count, 9) == worst.index(min(worst))


def test_a_chunk_takes_84_bytes_wherever_its_values_are() -> None:
    for places in (range(64), range(4032, 4096), range(0, 4096, 64), [*range(63), 4095]):
        values = torch.zeros(4096)
        values[list(places)] = 1.0
        data = TOPK2.encode(values)
        assert len(data) == TOPK2.num_bytes(4096) == 4 + 84
        assert torch.equal(TOPK2.decode(data), values)
        assert slice_sums.decoded(TOPK2.code, bytes(data)) == values.tolist()


def test_topk_by_hand() -> None:
    """62 ones, two eights among small ones: the eights are high, the ones low, the rest is gone."""
    values = torch.full((4096,), 0.01)
    values[100:162] = -1.0
    values[5], values[4095] = 8.0, -6.0
    decoded = TOPK2.decode(TOPK2.encode(values))
    assert decoded[100:162].tolist() == [-1.0] * 62
    assert (float(decoded[5]), float(decoded[4095])) == (7.0, -7.0)
    assert int(decoded.count_nonzero()) == 64


def test_a_mean_by_hand() -> None:
    """Places 5, 6 and 2107, for which k is 10: gaps 5, 0 and 2100 = 2 * 1024 + 52. A sixteenth of the scale is not there."""
    values = torch.zeros(4096)
    values[5], values[6], values[100], values[2107] = 6.0, -0.8, 0.375, 2.2
    data = bytes(SPARSE_MEAN.encode(values))
    unary, rests = 0b10011, 5 | 0 << 10 | 52 << 20
    chunk = struct.pack("<fHH", 6.0, 3, 1) + bytes([unary]) + rests.to_bytes(4, "little") + bytes([0x7 | 0x8 << 4, 0x2])
    assert data == struct.pack("<II", 4096, 8 + len(chunk)) + chunk
    decoded = SPARSE_MEAN.decode(data)
    assert [float(decoded[place]) for place in (5, 6, 100, 2107)] == [6.0, -0.75, 0.0, 2.25]
    assert int(decoded.count_nonzero()) == 3


def slowly_encoded(chunk: list[float]) -> bytes:
    """One chunk of a mean whose values are whole eighths of its scale."""
    scale = max(map(abs, chunk))
    places = [place for place, value in enumerate(chunk) if value]
    remainder_bits = remainder_bits_for(len(places), 4096)
    bits = slowly_packed(places, remainder_bits)
    for value in (chunk[place] for place in places):
        bits += format(round(abs(value) / scale * 8) - 1 | (value < 0) << 3, "04b")[::-1]
    packed = bytes(int(bits.ljust(-(-len(bits) // 8) * 8, "0")[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    unary_bytes = len(packed) - remainder_bytes(len(places), remainder_bits) - (len(places) + 1) // 2
    return struct.pack("<fHH", scale, len(places), unary_bytes) + packed


@settings(max_examples=15, deadline=None)
@given(densities=st.lists(st.sampled_from([0.0, 1 / 4096, 0.02, 0.12, 0.7, 1.0]), max_size=8), seed=st.integers(0, 99))
def test_chunks_that_are_coded_together_have_the_bytes_of_each_alone(densities: list[float], seed: int) -> None:
    """Chunks with no value, one, some and all of them stand beside each other."""
    random = np.random.default_rng(seed)
    chunks = np.zeros((len(densities), 4096), dtype=np.float32)
    for index, density in enumerate(densities):
        if density:
            chunks[index] = random.integers(-8, 9, size=4096) * (random.random(4096) < density)
            chunks[index, random.integers(4096)] = 8.0  # the scale
            chunks[index] *= np.float32(2.0 ** random.integers(-20, 20))
    values = torch.from_numpy(chunks.reshape(-1))
    data = SPARSE_MEAN.encode(values)
    chunks_slowly = b"".join(slowly_encoded(chunk) for chunk in chunks.tolist())
    assert bytes(data) == struct.pack("<II", len(values), 8 + len(chunks_slowly)) + chunks_slowly
    assert torch.equal(SPARSE_MEAN.decode(data), values)


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 40, 256])
def test_the_mean_of_sparse_vectors_loses_no_place(count: int) -> None:
    """Nothing but the rounding to eighths, however many hosts there are; and the slow decoder finds the same."""
    torch.manual_seed(count)
    vectors = [TOPK2.decode(TOPK2.encode(torch.randn(4096 + 100))) for _ in range(count)]
    mean = torch.stack(vectors).mean(dim=0)
    data = SPARSE_MEAN.encode(mean)
    assert len(data) == encoded_length(SPARSE_MEAN, data, mean.numel()) <= SPARSE_MEAN.num_bytes(mean.numel())
    back = SPARSE_MEAN.decode(data)
    for chunk, returned in zip(mean.split(4096), back.split(4096), strict=True):
        assert float((returned - chunk).abs().max()) <= float(chunk.abs().max()) / 16 * 1.0001
    slow = [slice_sums.decoded(SPARSE_MEAN.code, bytes(cut)) for cut in SPARSE_MEAN.cuts(data, 4096 + 100, 4096)]
    assert slow[0] + slow[1] == back.tolist()


@pytest.mark.parametrize(("count", "most"), [(8, 0.1301), (16, 0.23)])
def test_what_sparse_vectors_cost_both_ways(count: int, most: float) -> None:
    """Bytes a value that a host sends, of hosts that name their places at random; the rest is what `plan` reckons."""
    torch.manual_seed(1)
    size = 1 << 16
    mean = torch.stack([TOPK2.decode(TOPK2.encode(torch.randn(size))) for _ in range(count)]).mean(dim=0)
    up, back = TOPK2.num_bytes(size) / size, len(SPARSE_MEAN.encode(mean)) / size
    assert (up + back) * (count - 1) / count <= most
    assert bytes_each_way(TOPK2, count)[1] == pytest.approx(back, rel=0.06)
    assert math.isclose(bytes_each_way(TOPK2, count)[0], up, rel_tol=0.01)


@settings(max_examples=80, deadline=None)
@given(at=st.integers(0, 400), to=st.integers(0, 255), length=st.integers(0, 500), codec=st.sampled_from([TOPK2, SPARSE_MEAN]))
def test_changed_bytes_give_values_or_the_right_error(at: int, to: int, length: int, codec: object) -> None:
    assert codec is TOPK2 or codec is SPARSE_MEAN
    torch.manual_seed(3)
    data = bytearray(codec.encode(TOPK2.decode(TOPK2.encode(torch.randn(5000)))))
    data[at % len(data)] = to
    for attempt in (data, data[:length], data + b"\0"):
        try:
            values = codec.decode(bytes(attempt))
        except RemoteProtocolError:
            continue
        assert values.isfinite().all() and len(attempt) <= codec.num_bytes(values.numel())
        (whole,) = codec.cuts(bytes(attempt), values.numel(), values.numel())
        assert len(bytes(whole)) == len(attempt)


def test_places_beyond_the_stated_number_take_no_memory() -> None:
    """One bit could become many bytes: a part of some MB whose unary codes are all ones took hundreds of MB."""
    chunks = [struct.pack("<fHH", 1.0, 1, 40_000) + b"\xff" * 40_000 + bytes(3)] * 64
    body = b"".join(chunks) + struct.pack("<fHH", 0.0, 0, 0) * 1000
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="not as many"):
            SPARSE_MEAN.decode(struct.pack("<II", 1064 * 4096, 8 + len(body)) + body)
        assert tracemalloc.get_traced_memory()[1] < 1064 * 4096 * 4 + 12 * len(body)
    finally:
        tracemalloc.stop()


def test_values_behind_the_end_are_refused() -> None:
    data = bytearray(SPARSE_MEAN.encode(torch.ones(10)))
    data[0] = 9
    with pytest.raises(RemoteProtocolError, match="outside"):
        SPARSE_MEAN.decode(bytes(data))
    with pytest.raises(RemoteProtocolError):
        SPARSE_MEAN.decode(struct.pack("<II", 1 << 24 | 1, 8))
