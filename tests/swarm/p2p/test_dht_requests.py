"""What a stranger may ask of a node of the DHT."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PHandlerError
from hivemind.proto import dht_pb2

from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.dht_requests import BURST_KEYS, KEYS_PER_SECOND, MAX_ANSWER_BYTES, MAX_KEYS_ASKED, RequestGate
from tests.swarm.clock import Clock
from tests.swarm.swarm_hosts import started_hosts

RUN = Digest("ab" * 32)
KEY = DHTID(1).to_bytes()
TAG, VALUE = DHTProtocol.serializer.dumps("a"), DHTProtocol.serializer.dumps(b"record")


def store(num_keys: int, *, tag: bytes = TAG, in_cache: bool = False) -> Any:
    fields: dict[str, list[object]] = {"keys": [KEY], "subkeys": [tag], "values": [VALUE], "expiration_time": [1e10]}
    return dht_pb2.StoreRequest(in_cache=[in_cache] * num_keys, **{name: one * num_keys for name, one in fields.items()})


def find(num_keys: int) -> Any:
    return dht_pb2.FindRequest(keys=[KEY] * num_keys)


@pytest.mark.parametrize(
    ("request_", "is_answered"),
    [
        (store(1), True),
        (find(1), True),
        (dht_pb2.PingRequest(), True),
        (find(MAX_KEYS_ASKED), True),
        (find(MAX_KEYS_ASKED + 1), False),
        (store(MAX_KEYS_ASKED + 1), False),
        (store(1, tag=DHTProtocol.IS_DICTIONARY), False),
        (store(1, tag=b"x" * 4096), False),
        (store(1, in_cache=True), False),
    ],
)
def test_a_request_for_much_at_once_or_for_what_no_peer_of_ours_asks_is_not_answered(request_: Any, is_answered: bool) -> None:
    assert asyncio.run(RequestGate(Clock()).validate_request(request_)) == is_answered


def test_all_senders_share_one_budget() -> None:
    async def scenario() -> None:
        clock = Clock()
        gate = RequestGate(clock)
        answered = [await gate.validate_request(find(16)) for _ in range(200)]
        assert sum(answered) == BURST_KEYS // 16 and not answered[-1]
        clock.now += 16.5 / KEYS_PER_SECOND
        assert await gate.validate_request(find(16)) and not await gate.validate_request(find(16))

    asyncio.run(scenario())


def test_an_answer_of_any_length_is_not_read() -> None:
    large = dht_pb2.FindResponse(results=[dht_pb2.FindResult(value=bytes(MAX_ANSWER_BYTES))])
    assert not asyncio.run(RequestGate(Clock()).validate_response(large, find(1)))
    assert asyncio.run(RequestGate(Clock()).validate_response(dht_pb2.FindResponse(), find(1)))


def test_nothing_that_a_stranger_asks_of_a_live_node_hides_the_records_of_a_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_hosts(tmp_path, 2) as (host, stranger):
            await Discovery(host.dht, host.identity).announce_peer(RUN, await host.addresses())
            ask: Callable[..., Awaitable[Any]] = stranger.dht.protocol.get_stub(PeerID.from_base58(host.me)).rpc_store
            protocol, key = stranger.dht.protocol, DHTID.generate(f"adloco/{RUN}/peers").to_bytes()
            for subkey, in_cache in ((protocol.serializer.dumps(host.me), False), (TAG, True), (protocol.IS_DICTIONARY, False)):
                request = store(1, tag=subkey, in_cache=in_cache)
                request.keys[0], request.expiration_time[0] = key, stranger.clock() + 3000.0
                try:
                    assert not any((await ask(request)).store_ok)
                except P2PHandlerError:
                    continue
            reader = Discovery(stranger.dht, stranger.identity)
            assert [record.peer for record in await reader.find_peers(RUN)] == [host.me]

    asyncio.run(scenario())
