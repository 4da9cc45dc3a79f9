"""Honest peers are slow on a busy machine: here the product waits for them much longer than it does outside.

Not for the end of a node: what a dead daemon leaves unanswered is given up there, as it is outside.
"""

import contextlib
from collections.abc import Iterator

import pytest

from adloco_p2p.swarm.allreduce import receipt_exchange, recheck, shown_contributions
from adloco_p2p.swarm.discovery import manifest, reachability, run_records
from adloco_p2p.swarm.p2p import dialling, swarm_node
from adloco_p2p.swarm.transfer import chunk_server
from adloco_p2p.swarm.transport import gossip

PATIENCE_SECONDS = 60.0
LIMITS = (
    (receipt_exchange, "_CONNECT_SECONDS"),
    (recheck, "_CONNECT_SECONDS"),
    (shown_contributions, "_CONNECT_SECONDS"),
    (manifest, "SEND_TIMEOUT_SECONDS"),
    (reachability, "TIMEOUT_SECONDS"),
    (reachability, "DIAL_BACK_SECONDS"),
    (reachability, "REMOTE_DIAL_SECONDS"),
    (reachability, "SPEED_SECONDS"),
    (run_records, "READ_TIMEOUT_SECONDS"),
    (dialling, "DIAL_TIMEOUT_SECONDS"),
    (swarm_node, "DHT_TIMEOUT_SECONDS"),
    (chunk_server, "REQUEST_SECONDS"),
    (gossip, "SEND_TIMEOUT_SECONDS"),
)
"""Where no test is about the limit. One that is sets its own."""


@contextlib.contextmanager
def patience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for module, name in LIMITS:
            patched.setattr(module, name, PATIENCE_SECONDS)
        patched.setattr(swarm_node, "MAX_ROUTING_CHECKS", 10_000)
        yield
