"""The stranger's attacks against live processes: two nodes that train over loopback, and one process that floods them.

A row passes where both nodes still run when the flood is over, have ended rounds in it and after it, hold the same digests,
and give the stranger no seat.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from adloco_p2p.swarm.p2p.identity import Identity
from benchmarks.adversary.scenario import Outcome, Scenario
from benchmarks.nodes import ENVIRONMENT, ROOT, write_document
from benchmarks.soak import MACHINE, Peer, addresses_of, soak_document, write_soak_text

FLOOD_SECONDS = 20.0
WAIT_SECONDS = 120.0
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.2
INNER_STEPS = 10


class _Nodes:
    """Two peers of one run, and what they have done."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.addresses: list[str] = []
        self.digests: dict[tuple[int, int], dict[str, None]] = {}
        self.hosts: dict[str, None] = {}

    def start(self, folder: Path) -> None:
        write_soak_text(folder)
        config = write_document(folder, soak_document(folder, inner_steps=INNER_STEPS, instances=1))
        self.peers.append(Peer(0, folder / "peer-0", ["start", str(config), *MACHINE], 0.02))
        self.peers[0].start()
        self.addresses = addresses_of(self.peers[0])
        self.peers.append(Peer(1, folder / "peer-1", ["join", "--initial-peers", *self.addresses, *MACHINE], 0.02))
        self.peers[1].start()

    def newest(self) -> list[int]:
        """The newest round of each."""
        for peer in self.peers:
            for event in peer.new_rounds():
                peer.rounds[event["round"], event["instance"]] = event["digest"]
                self.digests.setdefault((event["round"], event["instance"]), {})[event["digest"]] = None
                self.hosts.update(dict.fromkeys(event["hosts"]))
        return [max((number for number, _ in peer.rounds), default=-1) for peer in self.peers]

    def wait_for(self, round: int) -> bool:
        """Whether both end this round in time."""
        end = time.monotonic() + WAIT_SECONDS
        while min(self.newest()) < round and time.monotonic() < end and all(peer.is_alive for peer in self.peers):
            time.sleep(LOOK_SECONDS)
        return min(self.newest()) >= round

    def stop(self) -> None:
        for peer in self.peers:
            if peer.is_alive:
                peer.signal(signal.SIGINT)
        for peer in self.peers:
            assert peer.process is not None
            try:
                peer.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                peer.process.kill()
                peer.process.wait()


def flooded(*deeds: str) -> Callable[[int], Outcome]:
    def play(seed: int) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="adversary-") as name:
            folder = Path(name)
            nodes = _Nodes()
            try:
                nodes.start(folder)
                return _flood(nodes, folder, deeds, seed)
            except SystemExit as not_listening:
                return Outcome(sent="nothing", happened=str(not_listening), has_passed=False)
            finally:
                nodes.stop()

    return play


def _flood(nodes: _Nodes, folder: Path, deeds: tuple[str, ...], seed: int) -> Outcome:
    if not nodes.wait_for(2):
        return Outcome(sent="nothing", happened="the nodes did not begin", has_passed=False)
    command = [sys.executable, "-m", "benchmarks.stranger", "--workdir", str(folder / "stranger"), "--seed", str(seed)]
    command += ["--seconds", str(FLOOD_SECONDS), "--initial-peers", *nodes.addresses, "--only", *deeds]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    before = min(nodes.newest())
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS * 2)
    after = min(nodes.newest())
    goes_on = nodes.wait_for(after + 2)
    me = Identity.load_or_create(folder / "stranger" / "identity.key").peer_id
    answers = [" ".join(line.split()) for line in told.stdout.splitlines()[1:4]]
    problems = {
        "the stranger did not get as far as flooding": told.returncode != 0 or not answers,
        "a node ended": not all(peer.is_alive for peer in nodes.peers),
        "no rounds in the flood": after <= before,
        "no rounds after it": not goes_on,
        "digests differ": any(len(found) > 1 for found in nodes.digests.values()),
        "the stranger got work": me in nodes.hosts,
    }
    wrong = [problem for problem, is_so in problems.items() if is_so]
    wrong += told.stderr.splitlines()[-1:] if told.returncode else []
    happened = "; ".join(wrong) or f"{after - before} rounds in the flood, and on after it"
    return Outcome(sent="; ".join(answers), happened=happened, has_passed=not wrong)


LIVE: tuple[Scenario, ...] = tuple(
    Scenario(name=f"live: {name}", finding=finding, play=flooded(*deeds))
    for finding, name, deeds in (
        ("A1", "one-vote entries", ("takes_over",)),
        ("A2", "forged histories", ("forges_a_history",)),
        ("A3", "unasked values", ("supplies_unasked_values",)),
        ("A4", "leaping beats", ("invents_beats", "says_farewell_for_others")),
        ("A6", "a crowd at the door", ("floods_the_door",)),
        ("A8", "small questions", ("pulls_and_pings",)),
        ("A9", "half-open streams and everything else", ()),
    )
)
