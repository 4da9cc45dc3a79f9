"""Slices of encoded parts, and the plain arithmetic that judges evidence about them, beside the codecs themselves."""

import numpy as np
import pytest
import torch

from adloco_p2p.core.ledger import slice_sums
from adloco_p2p.core.model.hash_tree import climb, leaf_hash, proof, slice_values, tree_root
from adloco_p2p.numerics.codecs import CODECS, codec_named
from adloco_p2p.numerics.part_tree import part_leaves, part_root, slices
from adloco_p2p.numerics.reduction import combination
from adloco_p2p.numerics.sparse_mean import SPARSE_MEAN
from adloco_p2p.numerics.tensor_codec import TensorCodec

SIZE = 4096 + 1000
SCALES = (1.0, 3e-39)
NAMES = [codec.name for codec in CODECS]


def values(seed: int, codec: TensorCodec, *, scale: float = 1.0) -> torch.Tensor:
    """[SIZE] float32, of several magnitudes, some of them zero."""
    random = np.random.default_rng(seed)
    drawn = random.standard_normal(SIZE) * 10.0 ** random.integers(-3, 3, SIZE) * (random.random(SIZE) < 0.9)
    return torch.from_numpy(np.clip(drawn * scale, -codec.largest / 4, codec.largest / 4).astype(np.float32))


@pytest.mark.parametrize("codec", [*CODECS, SPARSE_MEAN], ids=[*NAMES, SPARSE_MEAN.name])
def test_slices_are_encodings_by_themselves(codec: TensorCodec) -> None:
    vector = values(1, codec)
    data, length = codec.encode(vector), slice_values(codec.group)
    cuts = list(slices(codec, data, first=7 * length, size=SIZE, length=length))
    assert [first for first, _ in cuts] == list(range(7 * length, 7 * length + SIZE, length))
    for first, cut in cuts:
        begin = first - 7 * length
        assert bytes(cut) == bytes(codec.encode(vector[begin : begin + length].contiguous()))


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@pytest.mark.parametrize("scale", SCALES)
def test_plain_arithmetic_gives_what_reducers_return(codec: TensorCodec, scale: float) -> None:
    """Every slice of honest sums of three hosts, byte by byte the same values."""
    coefficients = (0.5, 0.2, 0.3)
    mean, length = codec.mean_codec, slice_values(codec.group)  # as large as that of the mean, or larger
    sent = [codec.encode(values(seed, codec, scale=scale)) for seed in range(3)]
    result = mean.encode(combination(codec, list(enumerate(sent)), coefficients, SIZE))
    whole = mean.decode(result).tolist()
    of_sent, of_result = zip(*(codec.cuts(data, SIZE, length) for data in sent), strict=True), mean.cuts(result, SIZE, length)
    for begin, cuts, returned in zip(range(0, SIZE, length), of_sent, of_result, strict=True):
        size = min(length, SIZE - begin)
        inputs = [slice_sums.decoded(codec.code, bytes(cut)) for cut in cuts]
        assert inputs == [codec.decode(data).tolist()[begin : begin + size] for data in sent]
        have = slice_sums.decoded(mean.code, bytes(returned))
        assert have == whole[begin : begin + size]
        wanted = slice_sums.returned(mean.code, slice_sums.combined(inputs, coefficients))
        assert slice_sums.are_equal(mean.code, wanted, have)
        assert not slice_sums.are_equal(mean.code, [-wanted[0] or 1.0, *wanted[1:]], have)


@pytest.mark.parametrize("num_hosts", [8, 40])
@pytest.mark.parametrize("is_divided", [False, True])
def test_sparse_means_of_many_hosts_are_judged_by_their_division(num_hosts: int, is_divided: bool) -> None:
    codec = codec_named("topk2")
    mean, factors = codec.mean_codec, tuple((1 + host % 3) / (3 * num_hosts) for host in range(num_hosts))
    divisors = tuple(2 * factor for factor in factors) if is_divided else ()
    sent = [codec.encode(values(seed, codec, scale=1e3 if seed == 1 else 1.0)[:4096].contiguous()) for seed in range(num_hosts)]
    result = bytes(mean.encode(combination(codec, list(enumerate(sent)), factors, 4096, divisors=divisors)))
    inputs = [slice_sums.decoded(codec.code, bytes(data)) for data in sent]
    have = slice_sums.decoded(mean.code, result)
    assert slice_sums.returned(mean.code, slice_sums.combined(inputs, factors, divisors)) == have
    assert slice_sums.returned(mean.code, slice_sums.combined(inputs, factors, () if is_divided else factors)) != have


def test_every_codec_of_a_run_is_known_to_the_ledger() -> None:
    codes = {codec.code for choice in CODECS for codec in (choice, choice.mean_codec)}
    assert codes == slice_sums.CODES


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_what_no_codec_decodes_the_ledger_does_not_decode(codec: TensorCodec) -> None:
    if codec.group == 1:
        data = torch.full((8,), float("nan")).to(codec._dtype).view(torch.uint8).numpy().tobytes()  # type: ignore[attr-defined]
    else:
        good = bytes(codec.encode(values(1, codec)[: slice_values(codec.group)].contiguous()))
        data = good[:4] + b"\xff\xff\xff\xff" + good[8:]  # a scale that is not a number
    with pytest.raises(ValueError, match=r"finite|scale"):
        slice_sums.decoded(codec.code, data)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_every_leaf_of_a_tree_has_a_proof_of_its_own(count: int) -> None:
    leaves = [leaf_hash(512 * at, bytes([at])) for at in range(count)]
    root = tree_root(leaves)
    for at, leaf in enumerate(leaves):
        assert climb(leaf, proof(leaves, at)) == root
        assert count == 1 or climb(leaf_hash(512 * at, b"?"), proof(leaves, at)) != root


def test_the_root_of_a_part_names_its_place_and_its_bytes() -> None:
    codec = CODECS[0]
    data = bytes(codec.encode(values(1, codec)))
    root = part_root(codec, data, first=0, size=SIZE, length=512)
    assert root == tree_root(part_leaves(codec, data, first=0, size=SIZE, length=512))
    assert root != part_root(codec, data, first=1, size=SIZE, length=512)
    assert root != part_root(codec, data[:-1] + b"?", first=0, size=SIZE, length=512)
