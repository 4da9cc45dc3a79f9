"""Limits on other nodes of the DHT: how many this one remembers, what it takes from them, and which records it sends unasked.

To hivemind a node is the id that it gives itself, and one peer may give itself any number of them. hivemind remembers each, and
when it first sees one, sends it all records that it should store: megabytes for a question of a hundred bytes. Here a peer is
one node, and records spread only by being announced again.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID, RoutingTable
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import PeerID


class BoundedRouting(RoutingTable):  # type: ignore[misc]  # hivemind is not typed
    """A routing table with one node per peer, and with at most as many waiting nodes for each bucket as it has places."""

    def add_or_update_node(self, node_id: DHTID, peer_id: PeerID) -> tuple[DHTID, PeerID] | None:
        """Add a node as hivemind does, but ignore an id that another peer's node has, until that one is gone."""
        if self.uid_to_peer_id.get(node_id, peer_id) != peer_id:
            return None
        earlier = self.get(peer_id=peer_id)
        if earlier is not None and earlier != node_id:
            self._forget(earlier)
        to_ping: tuple[DHTID, PeerID] | None = super().add_or_update_node(node_id, peer_id)
        waiting = self.buckets[self.get_bucket_index(node_id)].replacement_nodes
        while len(waiting) > self.bucket_size:
            self._forget(next(iter(waiting)))
        return to_ping

    def _forget(self, node_id: DHTID) -> None:
        with contextlib.suppress(KeyError):  # hivemind misplaces an id on the border of two buckets
            del self[node_id]


def bound_nodes(dht: DHTNode) -> None:
    """Set these limits on a node; call it before the node knows any other."""
    protocol, table = dht.protocol, dht.protocol.routing_table
    protocol.routing_table = BoundedRouting(table.node_id, table.bucket_size, table.depth_modulo)
    call_store, call_find = protocol.call_store, protocol.call_find

    async def call_find_others(peer: PeerID, keys: Collection[DHTID]) -> Any:
        """Ask, and leave out of the answer this node, whose own name among the nearest ends hivemind's search with an
        AssertionError, and all nodes beyond as many as an honest answer has."""
        answer = await call_find(peer, keys)
        if answer is None:
            return None
        return {key: (value, _others(dht, nearest)) for key, (value, nearest) in answer.items()}

    async def call_store_asked(peer: PeerID, keys: Sequence[DHTID], values: Sequence[object], *args: Any, **kwargs: Any) -> Any:
        """Send single records only, because hivemind sends whole dictionaries to new nodes unasked."""
        if any(isinstance(value, DictionaryDHTValue) for value in values):
            return None
        return await call_store(peer, keys, values, *args, **kwargs)

    protocol.call_store, protocol.call_find = call_store_asked, call_find_others


def _others(dht: DHTNode, nearest: Mapping[DHTID, PeerID]) -> dict[DHTID, PeerID]:
    others = ((node, peer) for node, peer in nearest.items() if node != dht.node_id and peer != dht.peer_id)
    return dict(islice(others, dht.protocol.bucket_size))
