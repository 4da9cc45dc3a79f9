"""How a vector is cut, encoded, summed and hashed; no network."""

import asyncio
import struct
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import AveragingError, RemoteProtocolError
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.aggregation.rule import shares
from adloco_p2p.numerics.codecs import codec_named, fits
from adloco_p2p.numerics.digest import blob_root, result_index
from adloco_p2p.numerics.reduction import BadPart, combination, part_statistics
from adloco_p2p.numerics.tensor_codec import encoded_length
from adloco_p2p.swarm.allreduce.allreduce_spec import MAX_LANES, AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.attempt_end import AttemptEnd
from adloco_p2p.swarm.allreduce.handshake import Hello, HelloReply, Purpose, failure
from adloco_p2p.swarm.allreduce.part_sink import PartSink

KEY = canonical.digest("key")
CODECS = ("float32", "float16", "bfloat16")


def spec(
    weights: list[int],
    shares: list[float] | None = None,
    *,
    size: int,
    codec: str,
    part_bytes: int,
    rule: str = "mean",
    steps: list[int] | None = None,
) -> AllReduceSpec:
    return AllReduceSpec(
        key=KEY,
        weights=tuple((PeerId(f"peer{index}"), weight) for index, weight in enumerate(weights)),
        shares=tuple(shares or [1.0] * len(weights)),
        size=size,
        codec=codec_named(codec),
        part_bytes=part_bytes,
        rule=rule_named(rule),
        steps=tuple(steps or [5] * len(weights)),
    )


@settings(max_examples=200, deadline=None)
@given(
    shares=st.lists(st.floats(0, 1e6), min_size=1, max_size=9).filter(any),
    size=st.integers(1, 5_000),
    codec=st.sampled_from((*CODECS, "int8", "int4", "topk2", "sign")),
    part_bytes=st.integers(4, 999),
)
def test_the_parts_are_the_vector_in_order(shares: list[float], size: int, codec: str, part_bytes: int) -> None:
    cut = spec([1] * len(shares), shares, size=size, codec=codec, part_bytes=part_bytes)
    first = offset = 0
    for number, part in enumerate(part for shard in cut.shards for part in shard):
        assert (part.index, part.first, part.offset) == (number, first, offset)
        assert part.size >= 1 and (part.num_bytes, part.num_sent_bytes) == (
            cut.mean_codec.num_bytes(part.size),
            cut.codec.num_bytes(part.size),
        )
        assert part.first % cut.codec.group == 0 and 4 * part.size <= max(part_bytes, 4 * cut.codec.group)
        first, offset = first + part.size, offset + part.num_bytes
    assert first == size and offset == cut.num_result_bytes
    for reducer, shard in enumerate(cut.shards):
        dealt = [part for lane in cut.lanes(reducer) for part in lane]
        assert sorted(dealt, key=lambda part: part.index) == list(shard)
    for share, shard in zip(shares, cut.shards, strict=True):
        assert abs(sum(part.size for part in shard) - size * share / sum(shares)) <= cut.codec.group + size * len(shares) / (
            1 << 20
        )


def test_every_difference_between_members_changes_the_digest() -> None:
    base = {"weights": [1, 2], "size": 100, "codec": "float32", "part_bytes": 64}
    others = [
        base | {"weights": [2, 1]},
        base | {"size": 101},
        base | {"codec": "bfloat16"},
        base | {"part_bytes": 68},
        base | {"shares": [1.0, 2.0]},
        base | {"rule": "clip"},
        base | {"steps": [5, 6]},
    ]
    digests = {spec(**each).digest for each in (base, *others)}  # type: ignore[arg-type]
    assert len(digests) == 8
    assert spec(**base, shares=[7.0, 7.0]).digest in digests  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", CODECS)
def test_decoding_is_a_plain_cast(codec: str) -> None:
    values = torch.randn(1_001)
    decoded = codec_named(codec).decode(bytes(codec_named(codec).encode(values)))
    assert torch.equal(decoded, values.to(getattr(torch, codec)).float())
    assert len(codec_named(codec).encode(values)) == codec_named(codec).num_bytes(1_001)


@pytest.mark.parametrize(("codec", "too_large"), [("float32", float("inf")), ("float16", 65_505.0), ("bfloat16", 3.4e38)])
def test_what_does_not_fit_is_seen(codec: str, too_large: float) -> None:
    values = torch.zeros(77)
    assert fits(codec_named(codec), values)
    for bad in (too_large, -too_large, float("nan")):
        values[76] = bad
        assert not fits(codec_named(codec), values)
    values[76] = codec_named(codec).largest
    assert fits(codec_named(codec), values)
    assert codec_named(codec).decode(codec_named(codec).encode(values)).isfinite().all()


def test_the_mean_is_rounded_after_every_product_and_sum() -> None:
    vectors, weights = [torch.randn(501) for _ in range(3)], (3, 4, 5)
    codec = codec_named("float32")
    contributions = [(member, codec.encode(vector)) for member, vector in enumerate(vectors)]
    mean = combination(codec, contributions, shares(weights), 501)
    for place in (0, 250, 500):
        total = torch.tensor(0.0)
        for vector, weight in zip(vectors, weights, strict=True):
            total = total + vector[place] * torch.tensor(weight / 12, dtype=torch.float32)
        assert mean[place] == total


def test_the_sender_of_a_bad_part_is_named() -> None:
    codec, good, bad = codec_named("float16"), torch.zeros(4), torch.tensor([0.0, 1.0, float("inf"), 0.0])
    with pytest.raises(BadPart) as found:
        combination(codec, [(3, codec.encode(good)), (8, codec.encode(bad))], (0.5, 0.5), 4)
    assert found.value.member == 8


@pytest.mark.parametrize("name", ["int4", "topk2", "sign"])
def test_who_claims_another_size_is_named_also_where_it_comes_first(name: str) -> None:
    codec = codec_named(name)
    good, short = (codec.encode(torch.ones(size)) for size in (8192, 8191))
    assert len(good) == len(short)  # so the bytes alone do not show it
    with pytest.raises(BadPart) as found:
        combination(codec, [(3, short), (8, good)], (0.5, 0.5), 8192)
    assert found.value.member == 3


def test_statistics_are_summed_in_double_precision() -> None:
    own, averaged = torch.full((100_000,), 1e-3), torch.full((100_000,), 1e3)
    a, b, c = float(own[0].double()), 1e3, 100_000
    assert part_statistics(own, averaged) == pytest.approx((c * a * a, c * a * b, c * b * b), rel=1e-14)
    assert part_statistics(None, averaged) == pytest.approx((0, 0, c * b * b), rel=1e-14)


def test_the_digest_depends_on_codec_size_order_and_lengths() -> None:
    one, two = bytes(32), bytes(31) + b"\1"
    codec = codec_named("float32")
    indices = (
        result_index(codec, 4, [(8, one), (8, two)]),
        result_index(codec, 4, [(8, two), (8, one)]),
        result_index(codec, 5, [(8, one), (8, two)]),
        result_index(codec, 4, [(4, one), (12, two)]),
        result_index(codec_named("bfloat16"), 4, [(8, one), (8, two)]),
    )
    assert len({blob_root(index) for index in indices}) == 5


@given(data=st.binary(max_size=200))
def test_garbage_is_refused_with_the_right_error(data: bytes) -> None:
    for parse in (Hello.decode, HelloReply.decode):
        with pytest.raises(RemoteProtocolError):
            parse(data)


def test_messages_survive_the_way() -> None:
    hello = Hello(purpose=Purpose.AVERAGE, key=KEY, spec=bytes(range(32)), codec=2, size=10**12, part_bytes=1 << 20)
    assert Hello.decode(hello.encode()) == hello
    with pytest.raises(RemoteProtocolError, match="lane 4"):
        Hello.decode(replace(hello, lane=MAX_LANES).encode())
    reply = failure("a reason, \u00e9, " + "x" * 1000, tuple(f"peer{index}" for index in range(99)))
    assert HelloReply.decode(reply.encode()) == reply


def sink_of(room: bytearray, arrived: list[Part]) -> PartSink:
    part, codec = Part(0, 0, 4096, 0, len(room), 0), codec_named("topk2").mean_codec
    return PartSink(
        PeerId("sender"),
        (part,),
        room=lambda _: memoryview(room),
        on_part=arrived.append,
        permitted=lambda: 1,
        length=lambda part, data: encoded_length(codec, data, part.size),
    )


@pytest.mark.parametrize("piece", [1, 5, 8, 13, 4096])
def test_a_part_with_a_length_ends_there(piece: int) -> None:
    """However it is cut in frames, and whatever lay in its room before."""
    codec = codec_named("topk2").mean_codec
    values = torch.zeros(4096)
    values[::50] = 1.0
    data, room, arrived = bytes(codec.encode(values)), bytearray(b"\xff" * codec.num_bytes(4096)), list[Part]()
    sink = sink_of(room, arrived)
    for begin in range(0, len(data), piece):
        cut = data[begin : begin + piece]
        assert not arrived
        sink.target(len(cut))[:] = cut
        sink.arrived(len(cut))
    assert len(arrived) == 1 and sink.is_complete and room[: len(data)] == data


def test_a_part_longer_than_its_room_is_refused() -> None:
    codec, arrived = codec_named("topk2").mean_codec, list[Part]()
    most = codec.num_bytes(4096)
    for claimed, sent in ((most + 1, 8), (7, 8), (20, 21)):
        sink = sink_of(bytearray(most), arrived)
        sink.target(sent)[:] = (struct.pack("<II", 4096, claimed) + bytes(sent))[:sent]
        with pytest.raises(RemoteProtocolError):
            sink.arrived(sent)
    assert not arrived


def test_a_report_about_another_average_names_its_reporter_alone() -> None:
    """Its suspects are members of that other average: a retry that completes this attempt must not fail because of them."""
    average = spec([1, 1, 1, 1], size=64, codec="float32", part_bytes=64)
    reporter, other = average.members[1], average.members[2]

    async def no_fault() -> None:
        return None

    async def report(of: bytes) -> tuple[AttemptEnd, AveragingError]:
        end = AttemptEnd(average, timeout_seconds=60.0, grace_seconds=0.0, local_fault=no_fault, awaited=set)
        end.on_remote_failure(reporter, of, failure("gone", (other,)))
        with pytest.raises(AveragingError) as caught:
            await end.wait()
        return end, caught.value

    end, error = asyncio.run(report(average.digest))
    assert (error.suspects, error.because, end.late) == ((other,), reporter, {})
    end, error = asyncio.run(report(bytes(32)))
    assert (error.suspects, error.because, end.late) == ((reporter,), None, {}) and "do not agree" in str(error)
