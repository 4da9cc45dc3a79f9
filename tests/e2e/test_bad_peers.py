"""Members that misbehave, in a swarm of three real peers: rounds go on, with the same bytes, and nobody stops."""

import itertools
import math
import signal
import time
from pathlib import Path

import pytest

from adloco_p2p.core.peer.lifecycle import HANDOVER_SECONDS
from benchmarks.bad_peer import KINDS
from tests.e2e.swarm_processes import WAIT_LIMIT_SECONDS, PeerProcess, digests_by_round, start_three, wait, write_swarm_config

ROUNDS_AMONG_BAD = 2
LEAVE_SECONDS = WAIT_LIMIT_SECONDS + HANDOVER_SECONDS
"""A member whose reports are refused never shows that it has the state, so those that leave may wait for it as long as they do
for anybody."""
TALKERS = ("foreign", "replay", "garbage")
"""What they say has nothing to do with what they compute, so one process can do it all."""


def is_member(peers: list[PeerProcess], who: str) -> bool:
    return any(
        who in [share["peer"] for instance in event["instances"] for share in instance["hosts"]]
        for event in peers[0].events
        if event["event"] == "plan"
    )


@pytest.mark.heavy
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "kinds", [("nan", *TALKERS), *((kind,) for kind in KINDS if kind not in ("nan", *TALKERS))], ids="+".join
)
def test_a_bad_member_changes_nothing_but_the_log(peers: list[PeerProcess], tmp_path: Path, kinds: tuple[str, ...]) -> None:
    start_three(peers, write_swarm_config(tmp_path, rounds=10_000))
    honest = [*peers]
    bad = PeerProcess(tmp_path / "bad", ("join", "--initial-peers", *honest[0].addresses())).start(fault=("misbehave", *kinds))
    peers.append(bad)
    me = bad.me
    wait(lambda: is_member(honest, me), "the bad peer to be given work", *peers)
    since = time.time()
    for peer in honest:
        rounds = [peer.wait_for("round", time=lambda at: at >= since)["round"]]
        for number in itertools.islice(itertools.count(rounds[0] + 1), ROUNDS_AMONG_BAD):
            peer.wait_for("round", round=number)
    assert bad.process.exitcode is None, bad.words[-2000:]
    for peer in honest:
        peer.signal(signal.SIGINT)
    assert [peer.end(seconds=LEAVE_SECONDS) for peer in honest] == [0, 0, 0]
    differing = {key: found for key, found in digests_by_round(honest).items() if len(found) > 1}
    assert not differing
    done = [event for peer in honest for event in peer.events if event["event"] == "round"]
    assert all(math.isfinite(event["loss"]) for event in done if event["loss"] is not None)
    if kinds[0] in ("nan", "shape", "weight"):
        averaged = [event for event in done if event["time"] > since and not event["is_void"]]  # of a void one: who was there
        assert averaged
        assert not any(me in event["hosts"] and len(event["hosts"]) > 1 for event in averaged)
