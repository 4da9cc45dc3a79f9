"""Peers that never accept a connection, two of them and one that does: all three are in the averages."""

import signal
from pathlib import Path

import pytest

from tests.e2e.swarm_processes import PeerProcess, digests_by_round, wait, write_swarm_config

CLIENT = ("--peer-set", "client_mode=true")
ROUNDS_TOGETHER = 4
"""Not in a row: on a machine that does other things too, one of them may come too late for a round."""


def averages_of(peer: PeerProcess, everybody: list[str]) -> list[int]:
    """The rounds in whose average all of them are."""
    rounds = [event for event in peer.events if event["event"] == "round" and not event["is_void"]]
    return [event["round"] for event in rounds if sorted(event["hosts"]) == everybody]


@pytest.mark.heavy
def test_two_peers_in_client_mode_contribute_through_a_third(peers: list[PeerProcess], tmp_path: Path) -> None:
    config = write_swarm_config(tmp_path, rounds=10_000)
    peers.append(PeerProcess(tmp_path / "first", ("start", config)).start())
    join = ("join", "--initial-peers", *peers[0].addresses(), *CLIENT)
    peers += [PeerProcess(tmp_path / name, join).start() for name in ("second", "third")]
    everybody = sorted(peer.me for peer in peers)

    def are_together() -> bool:
        return all(len(averages_of(peer, everybody)) >= ROUNDS_TOGETHER for peer in peers)

    wait(are_together, f"{ROUNDS_TOGETHER} averages of all", *peers)
    for peer in peers:
        peer.signal(signal.SIGINT)
    assert [peer.end() for peer in peers] == [0, 0, 0]
    assert all(len(found) == 1 for found in digests_by_round(peers).values())
    assert "client mode" in peers[1].words
