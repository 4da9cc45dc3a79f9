"""A donor among peers that ask for what does not exist, or not in the words of the protocol."""

import asyncio
import struct
from pathlib import Path

import pytest

from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.numerics.digest import blob_index, blob_root, chunk_digest
from adloco_p2p.swarm.transfer.chunk_fetcher import ChunkFetcher
from adloco_p2p.swarm.transfer.chunk_protocol import handler_name
from adloco_p2p.swarm.transfer.chunk_server import Blob, ChunkServer
from adloco_p2p.swarm.transfer.download import Download
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.framed_stream import FrameKind, StreamLost, open_stream
from adloco_p2p.swarm.transport.held import encode_held
from tests.swarm.patience import PATIENCE_SECONDS
from tests.swarm.swarm_hosts import started_hosts

CHUNKS = [bytes(reversed(range(100))), b"text"]
INDEX = blob_index(b"any head", [(len(chunk), chunk_digest(chunk)) for chunk in CHUNKS])


async def find(root: Digest) -> Blob | None:
    return Blob(INDEX, [memoryview(chunk) for chunk in CHUNKS]) if root == blob_root(INDEX) else None


def test_any_bytes_are_a_blob(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_hosts(tmp_path, 2) as (fetcher, donor):
            server = ChunkServer(Endpoint(donor.p2p), "text", find)
            await server.start()
            room = [bytearray(len(chunk)) for chunk in CHUNKS]
            download = Download(blob_root(INDEX), lambda _: [memoryview(chunk) for chunk in room], max_chunks=2)
            problems = await ChunkFetcher(Endpoint(fetcher.p2p), "text").fetch(
                download, [donor.me], timeout_seconds=PATIENCE_SECONDS
            )
            assert problems == {}
            assert room == CHUNKS
            assert download.index is not None and download.index.head == b"any head"

    asyncio.run(scenario())


@pytest.mark.parametrize("wants", [struct.pack("<I", len(CHUNKS)), b"\0", bytes(5)])
def test_a_fetcher_that_asks_for_what_does_not_exist_is_dropped_and_its_place_is_free(tmp_path: Path, wants: bytes) -> None:
    async def scenario() -> None:
        async with started_hosts(tmp_path, 2) as (stranger, donor):
            server = ChunkServer(Endpoint(donor.p2p), "text", find)
            await server.start()
            stream = await open_stream(stranger.p2p, donor.me, handler_name("text"), timeout_seconds=PATIENCE_SECONDS)
            stream.send(FrameKind.HELLO, bytes.fromhex(blob_root(INDEX)))
            await stream.receive(FrameKind.HELLO_REPLY)
            assert await stream.receive(FrameKind.TABLE) == INDEX
            assert await stream.receive(FrameKind.HELD) == encode_held(range(len(CHUNKS)), len(CHUNKS))
            assert server.num_served_now == 1
            stream.send(FrameKind.WANT, wants)
            with pytest.raises(StreamLost):
                await stream.receive(FrameKind.TABLE)
            assert (server._downloads, server.num_served_now) == ({}, 0)
            stream.abort()

    asyncio.run(scenario())


def test_a_member_that_keeps_its_place_for_ever_yields_it_to_another_one_after_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with started_hosts(tmp_path, 3) as (idle, fetcher, donor):
            endpoint = Endpoint(donor.p2p, members=lambda: {idle.me, fetcher.me, donor.me})
            server = ChunkServer(endpoint, "text", find, max_downloads=1)
            await server.start()
            stream = await open_stream(idle.p2p, donor.me, handler_name("text"), timeout_seconds=PATIENCE_SECONDS)
            stream.send(FrameKind.HELLO, bytes.fromhex(blob_root(INDEX)))
            await stream.receive(FrameKind.HELLO_REPLY)
            room = [bytearray(len(chunk)) for chunk in CHUNKS]
            download = Download(blob_root(INDEX), lambda _: [memoryview(chunk) for chunk in room], max_chunks=2)
            chunks, once = (ChunkFetcher(Endpoint(fetcher.p2p), "text", max_refusals=count) for count in (None, 1))
            problems = await once.fetch(download, [donor.me], timeout_seconds=PATIENCE_SECONDS)
            assert "busy with 1 downloads" in problems[donor.me] and not stream.is_lost
            monkeypatch.setattr("adloco_p2p.swarm.transfer.chunk_server.TURN_SECONDS", 0.0)
            assert await chunks.fetch(download, [donor.me], timeout_seconds=PATIENCE_SECONDS) == {}
            assert room == CHUNKS
            await stream.until_closed(PATIENCE_SECONDS)
            assert stream.is_lost
            stream.abort()

    asyncio.run(scenario())
