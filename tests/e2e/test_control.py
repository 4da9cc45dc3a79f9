"""A swarm of three real processes that is watched and commanded from outside, as its owner would."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.processes import Ended, run
from tests.e2e.swarm_processes import PeerProcess, digests_by_round, processes_of, wait, write_swarm_config


def ask(peer: PeerProcess, *words: object) -> Ended:
    """`adloco-peer WORDS --workdir DIR` in a process of its own."""
    folder = peer.workdir.with_name(f"ask-{time.monotonic_ns()}")
    folder.mkdir()
    ended = run([*words, "--workdir", peer.workdir], folder=folder)
    assert ended.code == 0, ended.errors
    return ended


def status(peer: PeerProcess) -> dict[str, Any]:
    fields = json.loads(ask(peer, "status", "--json").output)
    assert isinstance(fields, dict)
    return fields


def hosts_after(peer: PeerProcess, round_: int) -> list[list[str]]:
    return [event["hosts"] for event in peer.events if event["event"] == "round" and event["round"] > round_]


def newest_round(peer: PeerProcess) -> int:
    return max((event["round"] for event in peer.events if event["event"] == "round"), default=-1)


def roster_of(peer: PeerProcess) -> list[str]:
    plans = [event for event in peer.events if event["event"] == "plan"]
    return sorted(roster_entry["peer"] for roster_entry in plans[-1]["roster"])


def test_a_swarm_is_watched_paused_drained_and_terminated(tmp_path: Path) -> None:
    config = write_swarm_config(tmp_path, rounds=100_000, inner_steps=10)
    first = PeerProcess(tmp_path / "first", ("start", config)).start()
    link = first.link()
    second, third = (PeerProcess(tmp_path / name, ("join", "--initial-peers", link)).start() for name in ("second", "third"))
    peers = [first, second, third]
    try:
        _play(first, second, third)
        assert all(len(found) == 1 for found in digests_by_round(peers).values())
    finally:
        for peer in peers:
            peer.kill()
    wait(lambda: not processes_of(tmp_path), "their daemons to die")


def _play(first: PeerProcess, second: PeerProcess, third: PeerProcess) -> None:
    everybody = sorted(peer.me for peer in (first, second, third))

    first.wait_for("round", hosts=lambda hosts: sorted(hosts) == everybody)

    def of_all() -> dict[str, Any] | None:
        fields = status(second)
        return fields if sorted(row["peer"] for row in fields["peers"]) == everybody else None

    seen = wait(of_all, "the status to show all three", first, second, third)
    assert (seen["state"], seen["peer"], seen["rounds"]) == ("running", second.me, 100_000)
    assert abs(sum(row["share"] for row in seen["peers"]) - 1.0) < 1e-6

    # pause: the others go on without it, and it follows them
    ask(second, "pause", "--wait")
    assert status(second)["state"] == "paused"
    wait(lambda: roster_of(first) == sorted([first.me, third.me]), "the plan to leave the paused one out", first, second)
    paused_at = newest_round(second)
    wait(lambda: newest_round(first) > paused_at + 5, "the others to go on", first)
    assert newest_round(second) == paused_at
    wait(lambda: roster_of(second) == sorted([first.me, third.me]), "the paused one to follow", second)

    # resume: it contributes again
    ask(second, "resume")
    resumed_at = newest_round(first)
    wait(lambda: any(second.me in hosts for hosts in hosts_after(first, resumed_at)), "it to contribute again", first, second)
    wait(lambda: newest_round(second) > resumed_at, "it to say so", second)

    # checkpoint
    saved = status(first)["saved_round"]
    ask(first, "checkpoint")
    wait(lambda: status(first)["saved_round"] > saved, "a newer checkpoint", first)

    _ends(lambda: ask(second, "drain", "--wait"), second, witness=first)
    _ends(lambda: third.signal(signal.SIGTERM), third, witness=first)
    assert "SIGTERM" in third.wait_for("stopping")["reason"]
    alone = newest_round(first)
    wait(lambda: [first.me] in hosts_after(first, alone), "the last one to go on alone", first)
    _ends(lambda: ask(first, "leave"), first, witness=None)


def _ends(end: Callable[[], object], peer: PeerProcess, *, witness: PeerProcess | None) -> None:
    """It exits with 0, and the others know."""
    me = peer.me
    end()
    assert peer.end() == 0, peer.words
    if witness is not None:
        witness.wait_for("left", peer=me)
        wait(lambda: me not in roster_of(witness), "a plan without it", witness)
