"""What a stranger gains by giving its node of the DHT ever new ids."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2

from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.swarm.discovery import run_records
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.dht_nodes import BoundedRouting, _others
from adloco_p2p.swarm.p2p.dht_requests import RequestGate
from tests.swarm.swarm_hosts import started_hosts

RUN = Digest("ab" * 32)


def peer(number: int) -> PeerID:
    return PeerID(number.to_bytes(34, "big"))


def test_a_peer_is_one_node_whatever_ids_it_gives_itself() -> None:
    table = BoundedRouting(DHTID(1), bucket_size=20, depth_modulo=5)
    table.add_or_update_node(DHTID(7), peer(1))
    for number in range(1000):
        table.add_or_update_node(DHTID.generate(number), peer(2))
    assert len(table.uid_to_peer_id) == len(table.peer_id_to_uid) == 2
    table.add_or_update_node(DHTID(7), peer(3))
    assert table.get(node_id=DHTID(7)) == peer(1), "nobody takes the id of another's node"
    table.add_or_update_node(DHTID(9), peer(1))
    assert table.get(node_id=DHTID(7)) is None, "but a peer that starts again has another"


def test_however_many_peers_there_are_few_are_remembered() -> None:
    table = BoundedRouting(DHTID(1), bucket_size=20, depth_modulo=5)
    for number in range(20_000):
        table.add_or_update_node(DHTID.generate(number), peer(number))
    assert len(table.uid_to_peer_id) <= 2 * 20 * len(table.buckets) < 10_000
    assert len(table.peer_id_to_uid) == len(table.uid_to_peer_id)


def test_a_stranger_is_sent_no_records_that_it_did_not_ask_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_hosts(tmp_path, 2) as (host, stranger):
            assert await Discovery(host.dht, host.identity).announce_peer(RUN, await host.addresses())
            sent: list[PeerID] = []
            protocol = host.dht.protocol
            stub_for = protocol.get_stub

            def noting(peer_id: PeerID) -> object:
                sent.append(peer_id)
                return stub_for(peer_id)

            protocol.get_stub = noting
            ask = stranger.dht.protocol.get_stub(host.p2p.peer_id).rpc_ping
            for number in range(5):
                for node_id in list(protocol.routing_table.uid_to_peer_id):
                    del protocol.routing_table[node_id]  # the host is alone, so a new node should have all that it stores
                node_id = DHTID.generate(number).to_bytes()
                await ask(dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=node_id)))
            assert sent == []

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", ["the asker itself", "ever nearer"])
def test_no_answer_to_a_search_ends_a_peer_or_holds_it(answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hivemind asserts that a search does not find the asker, and goes on as long as it finds nearer nodes."""
    monkeypatch.setattr(run_records, "STORE_TIMEOUT_SECONDS", 2.0)
    honest, strangers, num_asked = DHTProtocol.rpc_find, list[DHTProtocol](), 0

    async def rpc_find(self: DHTProtocol, request: dht_pb2.FindRequest, context: Any) -> dht_pb2.FindResponse:
        nonlocal num_asked
        if self not in strangers:
            return await honest(self, request, context)
        num_asked += 1
        response = dht_pb2.FindResponse(peer=self.node_info)
        for raw in request.keys:
            ids, peers = [request.peer.node_id], [context.remote_id.to_bytes()]
            if answer == "ever nearer":
                far = (1 << 150) - 64 * num_asked
                ids = [DHTID(int.from_bytes(raw, "big") ^ (far - number)).to_bytes() for number in range(20)]
                peers = [self.p2p.peer_id.to_bytes()] * 20
            found = dht_pb2.FindResult(type=dht_pb2.NOT_FOUND, nearest_node_ids=ids, nearest_peer_ids=peers)
            response.results.append(found)
        return response

    monkeypatch.setattr(DHTProtocol, "rpc_find", rpc_find)
    monkeypatch.setattr(RequestGate, "_has_budget", lambda *_: True)  # a stranger limits nobody

    async def scenario() -> None:
        async with started_hosts(tmp_path, 2) as (host, stranger):
            strangers.append(stranger.dht.protocol)
            discovery = Discovery(host.dht, host.identity)
            record = await discovery.announce_peer(RUN, await host.addresses())
            assert num_asked and (record is not None) == (answer == "the asker itself")
            assert await discovery.announce_run(RUN, name="run", author=host.me, num_peers=1) == (record is not None)

    asyncio.run(scenario())


def test_an_answer_has_no_more_nodes_than_an_honest_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_hosts(tmp_path, 1) as (host,):
            most = host.dht.protocol.bucket_size
            nodes = {DHTID.generate(f"node {number}"): peer(number) for number in range(3 * most)}
            assert _others(host.dht, {host.dht.node_id: peer(0), **nodes}) == dict(list(nodes.items())[:most])
            assert _others(host.dht, {DHTID.generate("other"): host.dht.peer_id}) == {}

    asyncio.run(scenario())
