"""The stranger's attacks against live processes: two nodes that train over loopback, and one process that floods them.

A row passes if both nodes still run when the flood is over, have ended rounds during and after it, hold the same digests, and
give the stranger no work. Where seats cost computing, a third node comes during the flood: it pays, and has its seat before its
first proof of work is over, the rounds keep half of their pace, and the stranger sends more false proofs than a node checks.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from adloco_p2p.core.agreement.consensus import STRANGER_CHECKS, STRANGER_CHECKS_PER_SECOND
from adloco_p2p.core.ledger.proof_of_work import PROOF_ROUNDS
from benchmarks.adversary.arena import LEAST_PACE
from benchmarks.adversary.scenario import Outcome, Play, Scenario
from benchmarks.nodes import begin, end, write_document, write_text
from benchmarks.soak import START_SECONDS, Peer, begin_peer, soak_document
from benchmarks.stranger import false_proofs_made, frames_answered

FLOOD_SECONDS = 20.0
FLOOD_ROUNDS = 2
"""A flood lasts at least until both nodes have ended so many rounds in it."""
PATIENCE = 90.0
"""Seconds of processor time that both nodes may use without a round, so that a busy machine makes nobody late."""
IDLE_SECONDS = 300.0
IDLE_WORK = 1.0
"""Nodes that use less processor time than this for too long wait for something that does not come."""
LONGEST_SECONDS = 1800.0
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.2
INNER_STEPS = 10
STEP_SECONDS = 0.02
PAID: dict[str, Any] = {"admission": {"kind": "work", "price_minutes": 0.02, "probation_rounds": 0}}
"""The price is a second of one core."""
PAID_STEP_SECONDS = 0.3
"""A proof of work counts for 16 rounds, which take longer here than the search for a proof on a busy machine."""
QUIET_ROUNDS = 6
"""The rounds before the flood; it must not halve their pace."""
MOST_ROUNDS = 100
"""The rounds in which the newcomer starts, pays and gets its seat."""


class _Nodes:
    """Two peers of one run, and what they have done."""

    def __init__(self, folder: Path, *, step_seconds: float = STEP_SECONDS) -> None:
        self._folder, self._step_seconds = folder, step_seconds
        self.peers: list[Peer] = []
        self.newcomers: list[Peer] = []
        self.addresses: list[str] = []
        self.digests: dict[tuple[int, int], dict[str, None]] = {}
        self.hosts: dict[str, None] = {}
        self.ended_at: dict[int, float] = {}
        """When each round was seen to have ended on both peers."""

    def start(self, changes: dict[str, Any]) -> None:
        """Start both. `changes`: to the configuration."""
        write_text(self._folder)
        config = write_document(self._folder, soak_document(self._folder, inner_steps=INNER_STEPS, instances=1) | changes)
        self.peers.append(begin_peer(self._folder, "peer-0", "start", config, step_seconds=self._step_seconds))
        self.addresses = self.peers[0].addresses(deadline=time.monotonic() + START_SECONDS)
        self.peers.append(self._joined("peer-1"))

    def newcomer(self) -> Peer:
        """Start another peer, for which nobody waits."""
        self.newcomers.append(self._joined("newcomer"))
        return self.newcomers[-1]

    def _joined(self, name: str) -> Peer:
        join = ("join", "--initial-peers", *self.addresses)
        return begin_peer(self._folder, name, *join, step_seconds=self._step_seconds)

    def seats(self) -> list[tuple[int, list[str]]]:
        """Return the round and the members of each plan."""
        plans = [event for event in self.peers[0].events() if event["event"] == "plan"]
        return [(plan["round"], [line["peer"] for line in plan["roster"]]) for plan in plans]

    def newest(self) -> list[int]:
        """Return the newest round of each peer."""
        for peer in self.peers:
            for event in peer.note_rounds():
                self.digests.setdefault((event["round"], event["instance"]), {})[event["digest"]] = None
                self.hosts.update(dict.fromkeys(event["hosts"]))
        return [max((number for number, _ in peer.rounds), default=-1) for peer in self.peers]

    def wait_for(self, round: int, is_done: Callable[[], bool] = lambda: True) -> bool:
        """Return whether both end this round, and `is_done` holds, before the processes have worked, or been idle, for too long
        without a round."""
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
                self.ended_at.setdefault(min(newest), time.monotonic())
        return True

    def pace(self, *, since: int) -> float:
        """Return the rounds per second, from this one on; 0 where there were none."""
        ended = [(round, at) for round, at in sorted(self.ended_at.items()) if round >= since]
        return (ended[-1][0] - ended[0][0]) / (ended[-1][1] - ended[0][1]) if len(ended) > 1 else 0.0

    def _processor_seconds(self) -> float:
        """Return the processor time of the nodes and of their live child processes."""
        seconds = 0.0
        for peer in self.peers:
            with contextlib.suppress(psutil.Error):
                node = psutil.Process(peer.process.pid)
                for times in (process.cpu_times() for process in (node, *node.children(recursive=True))):
                    seconds += times.user + times.system
        return seconds


class _Newcomer:
    """A node that pays for a seat while the door is flooded."""

    def __init__(self, nodes: _Nodes, peer: Peer) -> None:
        self._nodes, self._peer = nodes, peer
        self._came_in = max(nodes.newest())
        self._paid_in: int | None = None
        """The round in which it had found its first proof of work."""
        self._seated_in: int | None = None
        """The round of the first plan with a seat for it."""

    def is_done(self) -> bool:
        """Return whether it has a seat, or can get none any more."""
        newest, me = max(self._nodes.newest()), self._peer.peer_id
        has_paid = any(event["event"] == "proving" and event["is_over"] for event in self._peer.events())
        self._paid_in = newest if self._paid_in is None and has_paid else self._paid_in
        self._seated_in = next((round for round, members in self._nodes.seats() if me in members), None)
        return self._seated_in is not None or newest > self._came_in + MOST_ROUNDS or not self._peer.is_alive

    def problem(self) -> str:
        if not self._peer.is_alive:
            return f"the newcomer ended: {self._peer.words[-200:]}"
        if self._paid_in is None or self._seated_in is None:
            return "the newcomer paid, and got no seat" if self._paid_in is not None else "the newcomer found no proof"
        waited = self._seated_in - self._paid_in
        return f"the newcomer waited for {waited} rounds" if waited > PROOF_ROUNDS else ""

    def __str__(self) -> str:
        return f"a newcomer paid in round {self._paid_in} and had a seat in round {self._seated_in}"


def flooded(*deeds: str, is_paid: bool = False) -> Play:
    """Return an attack by these deeds. `is_paid`: seats of the run cost computing, and a newcomer comes during the flood."""

    def play(seed: int) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="adversary-") as name:
            folder = Path(name)
            nodes = _Nodes(folder, step_seconds=PAID_STEP_SECONDS if is_paid else STEP_SECONDS)
            try:
                nodes.start(PAID if is_paid else {})
                return _flood(nodes, folder, deeds, seed, is_paid=is_paid)
            except SystemExit as not_listening:
                return Outcome(sent="nothing", happened=str(not_listening), has_passed=False)
            finally:
                end([*nodes.peers, *nodes.newcomers], seconds=STOP_SECONDS)

    return play


def _flood(nodes: _Nodes, folder: Path, deeds: tuple[str, ...], seed: int, *, is_paid: bool) -> Outcome:
    if not nodes.wait_for(2) or not nodes.wait_for((first := min(nodes.newest())) + QUIET_ROUNDS * is_paid):
        return Outcome(sent="nothing", happened="the nodes did not begin", has_passed=False)
    quiet_pace = nodes.pace(since=first)
    command = [sys.executable, "-m", "benchmarks.stranger", "--workdir", str(folder / "stranger"), "--seed", str(seed)]
    command += ["--seconds", str(LONGEST_SECONDS), "--initial-peers", *nodes.addresses, "--only", *deeds]
    stranger, newcomer = begin(folder, "stranger", command), None
    try:
        has_begun = nodes.wait_for(0, lambda: frames_answered(stranger.words) > 0)
        before, end = min(nodes.newest()), time.monotonic() + FLOOD_SECONDS
        if has_begun:
            newcomer = _Newcomer(nodes, nodes.newcomer()) if is_paid else None
            is_done = newcomer.is_done if newcomer is not None else lambda: True
            nodes.wait_for(before + FLOOD_ROUNDS, lambda: time.monotonic() >= end and is_done())
        has_ended, flood_seconds = not stranger.is_alive, time.monotonic() - end + FLOOD_SECONDS
    finally:
        stranger.kill()
    after, pace = min(nodes.newest()), nodes.pace(since=before) / quiet_pace if is_paid else 1.0
    goes_on = after <= before or nodes.wait_for(after + 2)  # a row without rounds in the flood has failed already
    told = stranger.words.splitlines()
    made, most_checked = false_proofs_made(stranger.words), STRANGER_CHECKS + STRANGER_CHECKS_PER_SECOND * flood_seconds
    problems = {
        f"no flood: {made} false proofs in {flood_seconds:.0f} s": is_paid and made <= most_checked,
        "the stranger did not get as far as flooding": not has_begun,
        "the stranger ended": has_ended,
        "a node ended": not all(peer.is_alive for peer in nodes.peers),
        "no rounds in the flood": after <= before,
        f"rounds at {pace:.0%} of the pace before": pace < LEAST_PACE,
        "no rounds after it": not goes_on,
        "digests differ": any(len(found) > 1 for found in nodes.digests.values()),
        "the stranger got work": stranger.peer_id in nodes.hosts,
    }
    wrong = [problem for problem, is_so in problems.items() if is_so]
    wrong += told[-1:] if has_ended else []
    wrong += [newcomer.problem()] if newcomer is not None and newcomer.problem() else []
    beside = f" at {pace:.0%} of the pace before, {newcomer}" if newcomer is not None else ""
    happened = "; ".join(wrong) or f"{after - before} rounds in the flood{beside}, and on after it"
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
    Scenario("live: false proofs of work", flooded("shows_false_proofs", is_paid=True)),
)
