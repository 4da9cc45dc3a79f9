"""A founder that others wait for in vain: where one of them begins, all do."""

import signal
from pathlib import Path

from tests.e2e.swarm_processes import PeerProcess, founded, write_swarm_config

NAMES = ("first", "second", "never")
IMPATIENT = ("impatient", "5")
BEFORE_IT_GIVES_UP = 300.0
"""Half of the time for which the second founder would wait for the last one."""


def test_a_founder_does_not_wait_where_another_one_has_begun(peers: list[PeerProcess], tmp_path: Path) -> None:
    """It would be silent to the others, which take it for gone after some seconds."""
    config = write_swarm_config(tmp_path, rounds=10_000)
    peers.append(PeerProcess(tmp_path / "first", ("start", config, *founded(tmp_path, *NAMES))).start(fault=IMPATIENT))
    join = ("join", "--initial-peers", *peers[0].addresses())
    peers.append(PeerProcess(tmp_path / "second", join).start())
    for peer, why in zip(peers, ("not here in time", "another founder has begun"), strict=True):
        over = peer.wait_for("warning", seconds=BEFORE_IT_GIVES_UP, key="founders", active=False)
        assert why in over["message"]
    both = sorted(peer.me for peer in peers)
    for peer in peers:
        peer.wait_for("round", seconds=BEFORE_IT_GIVES_UP, hosts=lambda hosts: sorted(hosts) == both)
    for peer in peers:
        peer.signal(signal.SIGINT)
    assert [peer.end() for peer in peers] == [0, 0]
