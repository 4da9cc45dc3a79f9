"""The cost of agreement for each of many peers: whole peers in the simulated world, rounds of a minute, averages not counted.

    python -m benchmarks.crowd --peers 100 [--rounds 4] [--hosts 32] [--round-seconds 60] [--loss 0] [--churn 0] [--minutes 60]
                                [--out FILE]

One instance, whose batch feeds `--hosts`; the other peers wait on the bench. Counted are the bytes of every message of the
agreement and the membership as they travel (deflated, with what an envelope adds), and beside them the plain ones, from the
second plan to the last, by kind, per peer and second of virtual time. Names, signatures and payload limits are those of real
peers; a message takes 20 to 100 ms.

Memory is that of this process, where all peers share the values of plans and reports; and that of one peer, in which these
count in full: a real one has libraries, tensors and a network beside it. Processor time is that of this process, which
simulates, checks and counts, too; and processor time of the core (`Peer.handle`), for each peer and plan: a signature takes a
microsecond here and some 80 in a real peer, which also packs and reads its messages.

Heartbeats come at one rate however long a round is; they are larger in the first lease (84 s with 1,000 peers), while the
incarnations of all members are news. All other kinds come with plans. So `at 60 s`, the rate with rounds of a minute, is that
of heartbeats of the size that they have at the end without these, and of the bytes of all other kinds in 60 seconds a plan.
The run ends when the first peer has the last plan, and a run that takes more than `--minutes` by the clock at that time.
"""

import argparse
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.effects import Effect
from adloco_p2p.core.model.events import Event
from adloco_p2p.core.model.rules import AdmissionRules, BatchRules, InstanceRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.peer.agreement_port import Agreement
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.world import Parts, World
from adloco_p2p.swarm.transport.pieces import deflated, in_pieces
from benchmarks.reachable import reachable_bytes

TARGET_BYTES_PER_SECOND = 10_000
"""The most bytes per second, each way and peer, at a thousand peers."""
ENVELOPE_BYTES = 120
"""Bytes of an envelope beside its payload: run, sender, kind, and the digest where there are pieces."""
MINUTE = 60.0
FEWEST_ROUNDS = 3
PEERS_WEIGHED = 8
MIB = 2**20
SIZES_KEPT = 64
"""Messages whose size is remembered: a message that is passed on is the same value."""


@dataclass(slots=True)
class Traffic:
    """Bytes that were sent, from `since` on."""

    since: float = 0.0
    sent: Counter[PeerId] = field(default_factory=Counter)
    received: Counter[PeerId] = field(default_factory=Counter)
    bytes_by_kind: Counter[str] = field(default_factory=Counter)
    plain_bytes_by_kind: Counter[str] = field(default_factory=Counter)
    messages_by_kind: Counter[str] = field(default_factory=Counter)
    core_seconds: float = 0.0
    """Seconds by the clock in the cores of all peers."""
    begun_at: tuple[float, float] = field(default_factory=lambda: (time.perf_counter(), time.process_time()))
    """When counting began: seconds by the clock, and of processor time."""
    _sizes: dict[int, tuple[object, int, int]] = field(default_factory=dict)

    def begin(self, now: float) -> None:
        """Count from now on."""
        self.since = now
        for counter in (self.sent, self.received, self.bytes_by_kind, self.plain_bytes_by_kind, self.messages_by_kind):
            counter.clear()
        self.core_seconds, self.begun_at = 0.0, (time.perf_counter(), time.process_time())

    def note(self, sender: PeerId, receivers: Sequence[PeerId], message: object) -> None:
        kind, count = type(message).__name__, len(receivers)
        size, plain = self.size(message)
        self.bytes_by_kind[kind] += size * count
        self.plain_bytes_by_kind[kind] += plain * count
        self.messages_by_kind[kind] += count
        self.sent[sender] += size * count
        for receiver in receivers:
            self.received[receiver] += size

    def note_work(self, seconds: float) -> None:
        self.core_seconds += seconds

    def core_processor_seconds(self) -> float:
        """Return the processor time of all peers' cores: other processes take the same part of the time inside and outside of
        them."""
        on_the_clock, of_processor = self.begun_at
        elapsed = max(1e-9, time.perf_counter() - on_the_clock)
        return self.core_seconds * (time.process_time() - of_processor) / elapsed

    def size(self, message: object) -> tuple[int, int]:
        known = self._sizes.get(id(message))
        if known is not None and known[0] is message:
            return known[1:]
        while len(self._sizes) >= SIZES_KEPT:
            del self._sizes[next(iter(self._sizes))]
        pieces = in_pieces(canonical.encode(message))
        size = sum(ENVELOPE_BYTES + len(deflated(piece) or piece) for piece in pieces)
        self._sizes[id(message)] = (message, size, sum(map(len, pieces)))
        return self._sizes[id(message)][1:]


class TimedPeer(Peer):
    """A peer that reports the seconds of each call by the clock, because asking for processor time may take longer than the
    call."""

    def __init__(self, took: Callable[[float], None], *, me: PeerId, cadence: Cadence, agreement: Agreement) -> None:
        super().__init__(me=me, cadence=cadence, agreement=agreement)
        self._took = took

    def handle(self, event: Event, now: float) -> list[Effect]:
        began = time.perf_counter()
        effects = super().handle(event, now)
        self._took(time.perf_counter() - began)
        return effects


def watch(world: World, traffic: Traffic) -> None:
    """Count what the machines of the world send, from the decision on its second plan."""
    send: Callable[..., None] = world.network.send
    decided = world._around.on_decided

    def counting(sender: PeerId, receivers: Sequence[PeerId], message: object, *, is_counted: bool = True) -> None:
        if receivers and is_counted:
            traffic.note(sender, receivers, message)
        send(sender, receivers, message, is_counted=is_counted)

    def on_decided(peer: PeerId, plan: object) -> None:
        decided(peer, plan)  # type: ignore[arg-type]
        if not traffic.since and 2 in world.decided:
            traffic.begin(world.time)

    world.network.send = counting  # type: ignore[method-assign]
    world._around.on_decided = on_decided


def play(arguments: argparse.Namespace) -> tuple[World, Traffic, str]:
    """Return the world at the end, its traffic, and the promise that was broken, if any."""
    peers, rounds = arguments.peers, arguments.rounds
    rules = Rules(
        work=WorkRules(rounds=rounds, inner_steps=4, max_hosts=arguments.hosts, turn_rounds=4),
        instances=InstanceRules(count=1, start="same"),
        batch=BatchRules(test="constant", initial_batch=arguments.hosts, max_batch=arguments.hosts),
        admission=AdmissionRules(kind="open"),
    )
    is_faulty = arguments.loss or arguments.churn
    faults = Faults(
        loss=arguments.loss,
        churn=arguments.churn,
        faults_end_at=rounds * arguments.round_seconds if is_faulty else 0.0,
    )
    traffic = Traffic()
    world = World(
        arguments.seed,
        peers=peers,
        rounds=rounds,
        faults=faults,
        round_seconds=arguments.round_seconds,
        rules=rules,
        parts=Parts(peer=partial(TimedPeer, traffic.note_work)),
    )
    watch(world, traffic)
    end = rounds * arguments.round_seconds * 2 + 60.0
    deadline = time.monotonic() + arguments.minutes * 60
    try:
        while world.queue and world.queue.now < end and rounds not in world.decided:
            if time.monotonic() > deadline:
                return world, traffic, f"ended after {arguments.minutes:g} minutes, at second {world.time:.1f} of virtual time"
            world.queue.step()
            world.checkers.at(world.queue.now)
    except Violation as violation:
        return world, traffic, str(violation)
    return world, traffic, "" if rounds in world.decided else "the run did not come to its end"


def a_few(world: World) -> list[Machine]:
    """Return some machines that run."""
    alive = [machine for machine in world.machines.values() if machine.is_responsive]
    return alive[:: max(1, len(alive) // PEERS_WEIGHED)]


def quiet_heartbeat(world: World, traffic: Traffic) -> float:
    """Return the bytes of a heartbeat in which no incarnation is news."""
    members = [(machine.process.agreement.members, machine.clock()) for machine in a_few(world) if machine.process is not None]
    return median(traffic.size(each.heartbeat(now + 2 * each.lease_seconds))[0] for each, now in members)


def memory(world: World) -> dict[str, object]:
    """Return the MiB that one peer keeps, as the median of a few peers, and those of its ledger entries."""
    some = [machine.process for machine in a_few(world) if machine.process is not None]
    entries = some[0].agreement.ledger.entries
    return {
        "peer_mib": median(reachable_bytes(process.peer) for process in some) / MIB,
        "entries_mib": reachable_bytes(*entries) / MIB,
        "entries": len(entries),
    }


def report(world: World, traffic: Traffic, arguments: argparse.Namespace, started: float, problem: str) -> dict[str, object]:
    seconds = max(1e-9, world.time - traffic.since)
    peers = len(world.machines)
    rate = {kind: total / peers / seconds for kind, total in traffic.bytes_by_kind.most_common()}
    plans = sorted(world.decided)
    quiet = quiet_heartbeat(world, traffic) * traffic.messages_by_kind["Heartbeat"] / peers / seconds
    counted = max(1, len([number for number in plans if number > 2]))
    plan_bytes = sum(total for kind, total in traffic.bytes_by_kind.items() if kind != "Heartbeat") / peers
    waits = []
    for number in plans[:-1]:  # the last one ends the run before all have it
        before = [at for at in world.reported.get(number - 2, ()) if at <= world.decided[number][0]]
        if before:
            waits.append(max(world.decided[number]) - max(before))
    return {
        "peers": peers,
        "hosts": arguments.hosts,
        "problem": problem,
        "plans": len(plans),
        "plans_per_minute": 60 * len([n for n in plans if n > 2]) / seconds,
        "seconds_from_the_last_report_to_all": median(waits) if waits else None,
        "sent_per_second": sum(rate.values(), start=0.0),
        "quiet_heartbeats_per_second": quiet,
        "sent_per_second_of_minutes": quiet + plan_bytes / counted / MINUTE,
        "most_sent_per_second": max(traffic.sent.values(), default=0) / seconds,
        "most_received_per_second": max(traffic.received.values(), default=0) / seconds,
        "bytes_per_second_by_kind": rate,
        "plain_bytes_per_second_by_kind": {
            kind: total / peers / seconds for kind, total in traffic.plain_bytes_by_kind.most_common()
        },
        "messages_per_second_by_kind": {
            kind: total / peers / seconds for kind, total in traffic.messages_by_kind.most_common()
        },
        "core_seconds_per_plan": traffic.core_processor_seconds() / peers / counted,
        **memory(world),
        "resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "processor_seconds": time.process_time() - started,
    }


def say(found: dict[str, object]) -> None:
    sent = found["sent_per_second"]
    assert isinstance(sent, float)
    print(f"{found['peers']} peers, {found['hosts']} hosts: {found['plans']} plans, {found['plans_per_minute']:.2f} a minute")
    waited = found["seconds_from_the_last_report_to_all"]
    if isinstance(waited, float):
        print(f"all have a plan {waited:.1f} s after the last report that it could use (median)")
    print(f"{'kind':16}{'B/s and peer':>14}{'plain':>9}{'messages/s':>12}")
    by_kind, plain = found["bytes_per_second_by_kind"], found["plain_bytes_per_second_by_kind"]
    messages = found["messages_per_second_by_kind"]
    assert isinstance(by_kind, dict) and isinstance(plain, dict) and isinstance(messages, dict)
    for kind, rate in by_kind.items():
        print(f"{kind:16}{rate:14.0f}{plain[kind]:9.0f}{messages[kind]:12.2f}")
    quiet, of_minutes = found["quiet_heartbeats_per_second"], found["sent_per_second_of_minutes"]
    print(f"at 60 s         {of_minutes:14.0f}, of which heartbeats {quiet:.0f}")
    assert isinstance(of_minutes, float)
    verdict = "reached" if of_minutes <= TARGET_BYTES_PER_SECOND else "missed"
    print(f"{'all':16}{sent:14.0f}{sum(plain.values()):9.0f}")
    print(f"the target at 1,000 peers, {TARGET_BYTES_PER_SECOND:,} B/s, is {verdict} at this size in rounds of a minute")
    most = f"{found['most_sent_per_second']:.0f} B/s, receives {found['most_received_per_second']:.0f} B/s"
    print(f"the peer that sends most sends {most} at most")
    print(f"a peer keeps {found['peer_mib']:.1f} MiB, {found['entries_mib']:.1f} of them in {found['entries']} ledger entries")
    print(f"the core takes {found['core_seconds_per_plan']:.3f} s of processor time per peer and plan")
    print(f"{found['resident_mib']:.0f} MiB and {found['processor_seconds']:.0f} s of processor time for the whole world")
    if found["problem"]:
        print(f"FAILED: {found['problem']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4, help="at least 3: bytes are counted from the second plan on")
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--round-seconds", type=float, default=60.0)
    parser.add_argument("--loss", type=float, default=0.0, help="part of the messages that never arrive")
    parser.add_argument("--churn", type=float, default=0.0, help="joiners, and as many leavers, per peer and minute")
    parser.add_argument("--minutes", type=float, default=60.0, help="by the clock, after which the run is ended")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a file for the figures as JSON")
    arguments = parser.parse_args()
    if arguments.rounds < FEWEST_ROUNDS:
        parser.error(f"--rounds {arguments.rounds}: bytes are counted from the second plan on; give {FEWEST_ROUNDS} or more")
    started = time.process_time()
    world, traffic, problem = play(arguments)
    found = report(world, traffic, arguments, started, problem)
    say(found)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
