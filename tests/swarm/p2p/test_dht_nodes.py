"""What a stranger gains by giving its node of the DHT ever new ids."""

import asyncio
from pathlib import Path

from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2

from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.dht_nodes import BoundedRouting
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
