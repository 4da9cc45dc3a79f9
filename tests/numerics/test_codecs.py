"""Every codec: bounds of its error, the same bytes, groups, emptiness, hugeness, and bytes from strangers."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adloco_p2p.config.run_config import AveragingConfig
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.codecs import CODECS, codec_named, fits, wire_bytes
from adloco_p2p.numerics.sparse_mean import SPARSE_MEAN
from adloco_p2p.numerics.tensor_codec import TensorCodec, encoded_length

ALL = (*CODECS, SPARSE_MEAN)
by_name = pytest.mark.parametrize("codec", ALL, ids=lambda codec: codec.name)
finite = st.floats(-(2.0**100), 2.0**100, width=32)
vectors = arrays(np.float32, st.integers(0, 300), elements=finite).map(torch.from_numpy)


def largest_error(codec: TensorCodec, group: torch.Tensor) -> float:
    """What the form of the codec allows for one group of values."""
    top = float(group.abs().max()) if group.numel() else 0.0
    return {"float32": 0.0, "float16": top / 1024, "bfloat16": top / 128, "int8": top / 253, "int4": top / 13.9}.get(
        codec.name, top
    )


@by_name
@settings(max_examples=60, deadline=None)
@given(values=vectors)
def test_what_comes_back_is_near(codec: TensorCodec, values: torch.Tensor) -> None:
    values = values.clamp(-codec.largest, codec.largest)
    data = codec.encode(values)
    assert len(data) == encoded_length(codec, data, values.numel()) <= codec.num_bytes(values.numel())
    decoded = codec.decode(bytes(data))
    assert decoded.dtype == torch.float32 and decoded.shape == values.shape and decoded.isfinite().all()
    size = max(codec.group, 64)
    for group, back in zip(values.split(size), decoded.split(size), strict=True):
        assert float((group - back).abs().max() if group.numel() else 0.0) <= largest_error(codec, group) * 1.0001 + 1e-7


@by_name
def test_coding_the_groups_is_coding_the_vector(codec: TensorCodec) -> None:
    """So that what a host transmits does not depend on how the vector is cut."""
    values = torch.randn(3 * max(codec.group, 2) + 17)
    cut = 2 * codec.group
    whole = codec.decode(codec.encode(values))
    assert torch.equal(
        whole, torch.cat([codec.decode(codec.encode(values[:cut].clone())), codec.decode(codec.encode(values[cut:].clone()))])
    )


@by_name
def test_the_same_values_give_the_same_bytes_and_huge_ones_stay_finite(codec: TensorCodec) -> None:
    values = torch.randn(9_001)
    assert bytes(codec.encode(values)) == bytes(codec.encode(values.clone()))
    huge = torch.full((4_097,), codec.largest)
    huge[::2] *= -1
    assert fits(codec, huge) and codec.decode(codec.encode(huge)).isfinite().all()
    assert codec.decode(codec.encode(torch.zeros(0))).numel() == 0
    assert torch.equal(codec.decode(codec.encode(torch.zeros(100))), torch.zeros(100))
    tiny = torch.full((100,), 1e-40)
    assert float((codec.decode(codec.encode(tiny)) - tiny).abs().max()) <= 1e-39


@by_name
@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=400), size=st.integers(0, 200))
def test_bytes_from_strangers_give_values_or_the_right_error(codec: TensorCodec, data: bytes, size: int) -> None:
    for attempt in (data, size.to_bytes(4, "little") + data.ljust(codec.num_bytes(size), b"\x81")[: codec.num_bytes(size) - 4]):
        try:
            decoded = codec.decode(attempt)
        except RemoteProtocolError:
            continue
        assert len(attempt) == encoded_length(codec, attempt, decoded.numel())


@by_name
def test_what_is_not_finite_does_not_fit(codec: TensorCodec) -> None:
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert not fits(codec, torch.tensor([0.0, bad]))


def test_int4_by_hand() -> None:
    codec = codec_named("int4")
    values = torch.zeros(64)
    values[:4] = torch.tensor([7.0, -7.0, 2.4, -0.6])
    assert codec.decode(codec.encode(values))[:5].tolist() == [7.0, -7.0, 2.0, -1.0, 0.0]
    assert codec.num_bytes(64) == 4 + 4 + 32


def test_sign_by_hand() -> None:
    """Two chunks, the second a short one: its scale is the mean of the magnitudes that are there."""
    codec = codec_named("sign")
    values = torch.zeros(4096 + 3)
    values[:4] = torch.tensor([4096.0, -4096.0, -8192.0, 0.0])
    values[4096:] = torch.tensor([1.0, -2.0, 6.0])
    data = codec.encode(values)
    decoded = codec.decode(data)
    assert decoded[:5].tolist() == [4.0, -4.0, -4.0, 4.0, 4.0]
    assert decoded[4096:].tolist() == [3.0, -3.0, 3.0]
    assert len(data) == codec.num_bytes(4099) == 4 + 2 * 4 + 513
    assert bytes(data[12:14]) == bytes([0b110, 0]), "the first value is the lowest bit"


def test_signs_come_back_as_signs_or_as_the_mean() -> None:
    assert codec_named("sign").mean_codec is codec_named("sign")
    assert codec_named("sign_int4").mean_codec is codec_named("int4")
    assert [codec.name for codec in CODECS if not codec.returns_mean] == ["topk2", "sign", "sign_int4"]


@pytest.mark.parametrize("name", ["int8", "int4", "topk2", "sign"])
def test_with_feedback_nothing_is_lost_for_long(name: str) -> None:
    """What is transmitted over many rounds adds up to what there was; without feedback it need not."""
    codec, generator = codec_named(name), torch.Generator().manual_seed(1)
    truth = torch.randn(8192, generator=generator)
    residual, sent = torch.zeros(8192), torch.zeros(8192)
    rounds = 200
    for _ in range(rounds):
        vector = truth + residual
        transmitted = codec.decode(codec.encode(vector))
        residual, sent = vector - transmitted, sent + transmitted
    assert float((sent / rounds - truth).norm() / truth.norm()) < 0.2
    biased = codec.decode(codec.encode(truth))
    assert float((biased - truth).norm()) > 2 * float((sent / rounds - truth).norm())


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_what_plan_reckons_a_value_to_cost_is_what_it_costs(codec: TensorCodec) -> None:
    """There, and back as the mean of four."""
    averaging: Any = {"codec": codec.name}
    assert AveragingConfig(**averaging).bytes_per_value == pytest.approx(wire_bytes(codec, 4), rel=0.05)
