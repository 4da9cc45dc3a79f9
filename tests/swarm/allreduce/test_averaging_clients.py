"""Members that nobody can dial, two of them and one that can be: what one reduces for all needs no way between the two."""

import asyncio

import pytest
import torch
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

from adloco_p2p.core.averaging.reduction_shares import reduction_shares
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.allreduce.averager import Averager
from adloco_p2p.swarm.transport.endpoint import Endpoint
from tests.swarm.averaging_peers import LIMITS, Peer, signing


async def start(known: list[str], *, is_client: bool) -> Peer:
    listening = {"host_maddrs": None, "no_listen": True, "dht_mode": "client"} if is_client else {}
    p2p = await P2P.create(initial_peers=known, startup_timeout=240, **listening)
    averager = Averager(Endpoint(p2p), part_bytes=4096, limits=LIMITS, **signing(p2p))
    await averager.start()
    return Peer(p2p, averager)


def test_two_clients_and_one_that_can_be_dialled_average_together() -> None:
    async def whole() -> None:
        public = await start([], is_client=False)
        known = [str(maddr) for maddr in await public.p2p.get_visible_maddrs()]
        clients = [await start(known, is_client=True) for _ in range(2)]
        peers = [public, *clients]
        try:
            with pytest.raises(P2PDaemonError):  # there is no way between the two
                await clients[0].p2p._client.connect(PeerID.from_base58(clients[1].peer_id), [])
            weights = tuple((peer.peer_id, index + 1) for index, peer in enumerate(peers))
            shares = reduction_shares([0.0, 0.0, 0.0], [True, False, False])
            calls = [
                peer.average("clients", weights, torch.full((20_000,), float(index)), shares=shares)
                for index, peer in enumerate(peers)
            ]
            results: list[Averaged] = await asyncio.gather(*calls)
            assert len({result.finished.digest for result in results}) == 1
            assert torch.allclose(results[2].vector, torch.tensor((0 * 1 + 1 * 2 + 2 * 3) / 6))
            assert all(len(result.finished.contributors) == 3 for result in results)
        finally:
            for peer in peers:
                await peer.averager.stop()
            for peer in peers:
                await peer.p2p.shutdown()

    asyncio.run(whole())
