"""The stranger's attacks against live processes: two nodes that train over loopback, and one process that floods them.

A row passes where both nodes still run when the flood is over, have ended rounds in it and after it, hold the same digests,
and give the stranger no seat.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.adversary.scenario import Outcome, Play, Scenario
from benchmarks.nodes import begin, end, write_document, write_text
from benchmarks.soak import START_SECONDS, Peer, begin_peer, soak_document
from benchmarks.stranger import frames_answered

FLOOD_SECONDS = 20.0
FLOOD_ROUNDS = 2
"""A flood lasts at least so long, and until both nodes have ended so many rounds in it."""
PATIENCE = 90.0
"""Seconds of processor time that both nodes may use without a round: a busy machine makes nobody late."""
IDLE_SECONDS = 300.0
IDLE_WORK = 1.0
"""Nodes that use less processor time than this in so long wait for something that does not come."""
LONGEST_SECONDS = 1800.0
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.2
INNER_STEPS = 10
STEP_SECONDS = 0.02


class _Nodes:
    """Two peers of one run, and what they have done."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.addresses: list[str] = []
        self.digests: dict[tuple[int, int], dict[str, None]] = {}
        self.hosts: dict[str, None] = {}

    def start(self, folder: Path) -> None:
        write_text(folder)
        config = write_document(folder, soak_document(folder, inner_steps=INNER_STEPS, instances=1))
        self.peers.append(begin_peer(folder, "peer-0", "start", config, step_seconds=STEP_SECONDS))
        self.addresses = self.peers[0].addresses(deadline=time.monotonic() + START_SECONDS)
        join = ("join", "--initial-peers", *self.addresses)
        self.peers.append(begin_peer(folder, "peer-1", *join, step_seconds=STEP_SECONDS))

    def newest(self) -> list[int]:
        """The newest round of each."""
        for peer in self.peers:
            for event in peer.note_rounds():
                self.digests.setdefault((event["round"], event["instance"]), {})[event["digest"]] = None
                self.hosts.update(dict.fromkeys(event["hosts"]))
        return [max((number for number, _ in peer.rounds), default=-1) for peer in self.peers]

    def wait_for(self, round: int, is_done: Callable[[], bool] = lambda: True) -> bool:
        """Whether both end this round, and it is done, before the processes have worked, or been idle, for too long without a
        round."""
        begun, newest, spent = time.monotonic(), self.newest(), self._processor_seconds()
        idle_since, before = begun, spent
        while min(newest) < round or not is_done():
            now, processor = time.monotonic(), self._processor_seconds()
            if abs(processor - before) >= IDLE_WORK:  # less than before where a child has ended
                idle_since, before = now, processor
            if now > min(begun + LONGEST_SECONDS, idle_since + IDLE_SECONDS) or processor > spent + PATIENCE:
                return False
            if not all(peer.is_alive for peer in self.peers):
                return False
            time.sleep(LOOK_SECONDS)
            if (found := self.newest()) != newest:
                newest, spent = found, self._processor_seconds()
        return True

    def _processor_seconds(self) -> float:
        """Of the nodes and the processes that they started, as far as these live."""
        seconds = 0.0
        for peer in self.peers:
            with contextlib.suppress(psutil.Error):
                node = psutil.Process(peer.process.pid)
                for times in (process.cpu_times() for process in (node, *node.children(recursive=True))):
                    seconds += times.user + times.system
        return seconds


def flooded(*deeds: str) -> Play:
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
                end(nodes.peers, seconds=STOP_SECONDS)

    return play


def _flood(nodes: _Nodes, folder: Path, deeds: tuple[str, ...], seed: int) -> Outcome:
    if not nodes.wait_for(2):
        return Outcome(sent="nothing", happened="the nodes did not begin", has_passed=False)
    command = [sys.executable, "-m", "benchmarks.stranger", "--workdir", str(folder / "stranger"), "--seed", str(seed)]
    command += ["--seconds", str(LONGEST_SECONDS), "--initial-peers", *nodes.addresses, "--only", *deeds]
    stranger = begin(folder, "stranger", command)
    try:
        has_begun = nodes.wait_for(0, lambda: frames_answered(stranger.words) > 0)
        before, end = min(nodes.newest()), time.monotonic() + FLOOD_SECONDS
        if has_begun:
            nodes.wait_for(before + FLOOD_ROUNDS, lambda: time.monotonic() >= end)
        has_ended = not stranger.is_alive
    finally:
        stranger.kill()
    after = min(nodes.newest())
    goes_on = after <= before or nodes.wait_for(after + 2)  # without rounds in the flood the row has failed already
    told = stranger.words.splitlines()
    problems = {
        "the stranger did not get as far as flooding": not has_begun,
        "the stranger ended": has_ended,
        "a node ended": not all(peer.is_alive for peer in nodes.peers),
        "no rounds in the flood": after <= before,
        "no rounds after it": not goes_on,
        "digests differ": any(len(found) > 1 for found in nodes.digests.values()),
        "the stranger got work": stranger.peer_id in nodes.hosts,
    }
    wrong = [problem for problem, is_so in problems.items() if is_so]
    wrong += told[-1:] if has_ended else []
    happened = "; ".join(wrong) or f"{after - before} rounds in the flood, and on after it"
    return Outcome(
        sent=next((line for line in reversed(told) if "answered" in line), "nothing"), happened=happened, has_passed=not wrong
    )


LIVE: tuple[Scenario, ...] = (
    Scenario("live: one-vote entries", flooded("takes_over"), "A1"),
    Scenario("live: forged histories", flooded("forges_a_history"), "A2"),
    Scenario("live: unasked values", flooded("supplies_unasked_values"), "A3"),
    Scenario("live: leaping beats", flooded("invents_beats", "says_farewell_for_others"), "A4"),
    Scenario("live: a crowd at the door", flooded("floods_the_door"), "A6"),
    Scenario("live: small questions", flooded("pulls_and_pings"), "A8"),
    Scenario("live: half-open streams and everything else", flooded(), "A9"),
)
