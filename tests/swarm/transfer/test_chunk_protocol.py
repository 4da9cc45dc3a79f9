"""Remote bytes at the border of a transfer."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.digest import blob_index
from adloco_p2p.swarm.transfer.chunk_protocol import (
    MAX_CHUNK_BYTES,
    MAX_HEAD_BYTES,
    Answer,
    ChunkIndex,
    decode_reply,
    encode_reply,
    max_index_bytes,
)


@given(data=st.binary(max_size=200))
@example(blob_index(b"head", [(7, bytes(32))]))
def test_an_index_is_what_was_sent_or_refused(data: bytes) -> None:
    try:
        index = ChunkIndex.decode(data)
    except RemoteProtocolError:
        return
    assert blob_index(index.head, index.chunks) == data


@given(data=st.binary(max_size=400))
@example(bytes([Answer.BUSY, *b"busy"]))
def test_a_reply_is_a_known_answer_and_a_short_reason_or_refused(data: bytes) -> None:
    try:
        answer, reason = decode_reply(data)
    except RemoteProtocolError:
        return
    assert data[0] == answer and len(reason) == len(data) - 1 <= 300 and reason.isprintable()


@given(
    head=st.binary(max_size=MAX_HEAD_BYTES),
    chunks=st.lists(st.tuples(st.integers(1, MAX_CHUNK_BYTES), st.binary(min_size=32, max_size=32)), max_size=5),
)
def test_an_index_survives_the_way(head: bytes, chunks: list[tuple[int, bytes]]) -> None:
    raw = blob_index(head, chunks)
    assert ChunkIndex.decode(raw) == ChunkIndex(head, tuple(chunks))
    assert len(raw) <= max_index_bytes(len(chunks))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\5abc",
        bytes([MAX_HEAD_BYTES + 1]) + bytes(MAX_HEAD_BYTES + 1),
        blob_index(b"", [(0, bytes(32))]),
        blob_index(b"", [(MAX_CHUNK_BYTES + 1, bytes(32))]),
        blob_index(b"", [(1, bytes(32))])[:-1],
    ],
)
def test_what_is_no_index_is_refused(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        ChunkIndex.decode(raw)


def test_replies_survive_the_way_and_are_fit_to_be_printed() -> None:
    assert decode_reply(encode_reply(Answer.GO)) == (Answer.GO, "")
    assert decode_reply(encode_reply(Answer.BUSY, "busy \u00e9\x1b[2J")) == (Answer.BUSY, "busy ??[2J")
    assert len(decode_reply(encode_reply(Answer.REFUSED, "x" * 1000))[1]) == 300
    with pytest.raises(RemoteProtocolError):
        decode_reply(bytes([Answer.REFUSED]) + b"x" * 301)
