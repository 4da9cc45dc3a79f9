"""Peers that never accept a connection, two of them and one that does: all three are in the averages."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.swarm_processes import PeerProcess, digests_by_round, processes_of, wait, write_swarm_config

CLIENT = ("--peer-set", "client_mode=true")


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[list[PeerProcess]]:
    """None of the processes outlives the test."""
    config = write_swarm_config(tmp_path, rounds=10_000)
    first = PeerProcess(tmp_path / "first", ("start", config)).start()
    join = ("join", "--initial-peers", *first.addresses(), *CLIENT)
    peers = [first, *(PeerProcess(tmp_path / name, join).start() for name in ("second", "third"))]
    yield peers
    for peer in peers:
        peer.kill()
    wait(lambda: not processes_of(tmp_path), "nothing to be left", seconds=10.0)


@pytest.mark.heavy
def test_two_peers_in_client_mode_contribute_through_a_third(swarm: list[PeerProcess]) -> None:
    everybody = sorted(peer.me for peer in swarm)
    together = swarm[1].wait_for("round", hosts=lambda hosts: sorted(hosts) == everybody)["round"]
    for number in range(together + 1, together + 4):
        for peer in swarm:
            assert sorted(peer.wait_for("round", round=number)["hosts"]) == everybody
    for peer in swarm:
        peer.signal(signal.SIGINT)
    assert [peer.end() for peer in swarm] == [0, 0, 0]
    assert all(len(found) == 1 for found in digests_by_round(swarm).values())
    assert "client mode" in swarm[1].words
