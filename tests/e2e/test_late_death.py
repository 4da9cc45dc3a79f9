"""A real process falls silent in the middle of an average, when all contributions are complete: it stays in the mean."""

from pathlib import Path

import pytest
import yaml

from tests.e2e.swarm_processes import PeerProcess, digests_by_round, founded, wait, write_swarm_config

REDUCING = "adloco_p2p.swarm.allreduce.shard_reduction:ShardReduction.reduce"
LAST_CALL = "3"
"""It reduces one part of a round, or none where its uplink seems slow."""
ROUNDS = 12
PATIENT = ("patient", "10")
"""The leader of a retry waits so long for the others' reports, in seconds: on a busy machine they take a while."""


@pytest.mark.heavy
def test_what_a_silent_host_had_contributed_is_not_averaged_again(peers: list[PeerProcess], tmp_path: Path) -> None:
    """It stops between its inner products, by which the others decide, and its part of the result, which they never get."""
    config = write_swarm_config(tmp_path, rounds=ROUNDS)
    document = yaml.safe_load(config.read_text())
    document["averaging"] = {"aggregation": "robust"}
    config.write_text(yaml.safe_dump(document))
    names = ("first", "second", "third", "victim")
    peers.append(PeerProcess(tmp_path / "first", ("start", config, *founded(tmp_path, *names))).start(fault=PATIENT))
    for name in names[1:]:
        fault = ("hang_at", REDUCING, LAST_CALL) if name == "victim" else PATIENT
        peers.append(PeerProcess(tmp_path / name, ("join", "--initial-peers", *peers[0].addresses())).start(fault=fault))
    *living, victim = peers
    led = wait(
        lambda: [
            event
            for peer in living
            for event in peer.events
            if event["event"] == "average_retried" and victim.me in event["without"]
        ],
        "a host to lead the retry",
        *living,
    )
    assert [(event["without"], event["completes"]) for event in led] == [([victim.me], True)]
    silent = led[0]["round"]
    assert [peer.end() for peer in living] == [0] * len(living)
    rounds = {event["round"]: event for event in living[0].events if event["event"] == "round"}
    assert set(rounds) == set(range(ROUNDS)) and not any(event["is_void"] for event in rounds.values())
    assert victim.me not in rounds[silent]["hosts"] and len(rounds[silent]["hosts"]) == 3
    assert all(len(found) == 1 for found in digests_by_round(living).values())
