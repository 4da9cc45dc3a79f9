"""One peer: `Peer.handle(event, now)` returns effects. Begin at `peer.py`."""
