"""Does a swarm of real peers keep its promises over internet links?

    python -m benchmarks.wan.swarm --out DIRECTORY [--profile lossy] [--peers 4] [--rounds 10] [--partition SECONDS]
                                   [--congestion-control cubic] [--minutes 3] [--step-seconds SECONDS]

Every peer is `adloco-peer` in a network namespace of its own; the first one starts the run, the others join it. Afterwards
the peers' own event files and ledgers are judged; the command ends with 1 where one of these is broken:

- every round that was planned is completed, and every peer ends with the run, by itself and in time;
- all that completed the same plan have the same parameters after it, each side of a cut for itself;
- nobody with a share in a plan is missing in its average without a reason in somebody's log;
- all ledgers are equal, and hold what they promise (`adloco-peer ledger verify`);
- around a cut: both sides complete rounds during it, all have one history within ten gossip periods of its healing, and what
  the losing side trained is merged in by a plan of the ledger, or dropped by one with a reason.

`--partition` cuts the first half of the peers from the second after a third of the rounds, and heals it. Two cores cannot be
eight machines: `--step-seconds` gives every peer a device that takes so long for an inner step (`benchmarks.paced`), and a
model so small that computing it fits in.

In the table, seconds are those of the slowest host of the round. `bytes` is what the host that sent most told of this round's
average, over 2 (n - 1) / n times the encoded size, for n contributors. `late` is the share of packets that the emulator
delivered over 2 ms late: more than a few per cent, and this machine was too slow for its task.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from benchmarks.nodes import ROOT, Member, end_on_sigterm, new_directory, paced, problems_of, write_config
from benchmarks.wan.lab import CongestionControl, Laboratory, Link, begin_in
from benchmarks.wan.verdict import Cut, Life, Verdict, judge, show_promises

LOOK_SECONDS = 0.5
READ_SECONDS = 120.0
"""How long the ledger verbs may take after the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    title: str
    link: Mapping[str, float]
    last: Mapping[str, float] = field(default_factory=dict)
    """Settings of the last peer that differ."""

    def links(self, num_peers: int) -> list[Link]:
        names = [f"peer-{index}" for index in range(num_peers)]
        others = [Link(name=name, **self.link) for name in names[:-1]]
        return [*others, Link(name=names[-1], **{**self.link, **self.last})]


CLEAN = {"up_mbit": 100.0, "down_mbit": 100.0, "delay_ms": 12.5}
PROFILES = {
    "clean": Profile(title="100 Mbit/s, 50 ms", link=CLEAN),
    "lossy": Profile(title="100 Mbit/s, 50 ms, 1 % loss", link={**CLEAN, "loss": 0.01}),
    "home": Profile(title="100 Mbit/s, 50 ms, one peer 10 up", link=CLEAN, last={"up_mbit": 10.0}),
    "far": Profile(title="100 Mbit/s, 100 ms, 2 % loss", link={**CLEAN, "delay_ms": 25.0, "loss": 0.02}),
}


# --- the run --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Course:
    """The events on the network, in unix seconds, and its traffic."""

    begun: float
    cut: float | None = None
    healed: float | None = None
    ended: float = 0.0
    wire_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes of IP packets that the host sent."""
    lost_packets: int = 0
    """Packets lost by chance and at full queues."""
    late_fraction: float = 0.0


def conduct(args: argparse.Namespace, config: Path) -> tuple[Course, list[Member], list[str]]:
    """Run the swarm to its end, or to the end of its time. Also returns what went wrong with the processes."""
    course = Course(begun=time.time())
    deadline = time.monotonic() + 60 * args.minutes
    links = PROFILES[args.profile].links(args.peers)
    with Laboratory(links, congestion_control=args.congestion_control, seed=args.seed) as lab:
        members = [begin_in(lab, args.out, lab.hosts[0], "start", config, program=paced(args.step_seconds))]
        join = ("join", "--initial-peers", *members[0].addresses(deadline=deadline))
        for host in lab.hosts[1:]:
            members.append(begin_in(lab, args.out, host, *join, program=paced(args.step_seconds)))
        while any(member.is_alive for member in members) and time.monotonic() < deadline:
            if args.partition:
                disturb(lab, course, members, seconds=args.partition, after_rounds=args.rounds // 3)
            time.sleep(LOOK_SECONDS)
        course.ended = time.time()
        problems = problems_of(members, minutes=args.minutes)
        counters = lab.counters()
    course.wire_bytes = {host: item.sent_bytes for host, item in counters.items()}
    course.lost_packets = sum(item.lost + item.up_dropped + item.down_dropped for item in counters.values())
    received = sum(item.received_packets for item in counters.values())
    course.late_fraction = sum(item.late for item in counters.values()) / max(1, received)
    if args.partition and course.healed is None:
        problems.append("the run was over before the partition was")
    return course, members, problems


def disturb(lab: Laboratory, course: Course, members: Sequence[Member], *, seconds: float, after_rounds: int) -> None:
    """Cut the network once everybody trains, and heal it when it is time."""
    if course.cut is None:
        # A newcomer counts once it has done two rounds with the others.
        if members[0].num_rounds() >= after_rounds and all(member.num_rounds() >= 2 for member in members):
            half = len(members) // 2
            lab.partition([lab.hosts[:half], lab.hosts[half:]])
            course.cut = time.time()
    elif course.healed is None and time.time() >= course.cut + seconds:
        lab.heal()
        course.healed = time.time()


def read_ledgers(members: Sequence[Member]) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Return every peer's plans, and the problems that `ledger verify` finds in them."""
    plans: dict[str, list[dict[str, Any]]] = {}
    problems = []
    for member in members:
        command = [sys.executable, "-m", "adloco_p2p", "ledger"]
        options: dict[str, Any] = {"cwd": ROOT, "text": True, "capture_output": True, "timeout": READ_SECONDS}
        shown = subprocess.run([*command, "--json", "--workdir", member.workdir], check=False, **options)
        plans[member.name] = [json.loads(line) for line in shown.stdout.splitlines()] if shown.returncode == 0 else []
        verified = subprocess.run([*command, "verify", "--workdir", member.workdir], check=False, **options)
        if shown.returncode or verified.returncode:
            said = (verified.stdout + verified.stderr + shown.stderr).strip()
            problems.append(f"ledger of {member.name}: {said[:400]}")
    return plans, problems


def judged(members: Sequence[Member], problems: Sequence[str], *, rounds: int, partition: Cut | None = None) -> Verdict:
    """Judge by the event files and the ledgers of all members. `problems`: those of their processes."""
    ledgers, more = read_ledgers(members)
    lives = [Life(name=member.name, events=member.events()) for member in members]
    return judge(lives, ledgers, [*problems, *more], rounds=rounds, partition=partition)


# --- what is shown --------------------------------------------------------------------------------------------------------


HEAD = "round shares in avg digests  train averaging retry+repair commit waiting  bytes"


def show(verdict: Verdict, course: Course) -> None:
    print(HEAD)
    for done in verdict.rounds:
        slow = done.slowest_seconds
        again = slow.get("retrying", 0.0) + slow.get("repairing", 0.0)
        times = [slow.get("training", 0.0), slow.get("averaging", 0.0)]
        late = [again, slow.get("committing", 0.0), slow.get("waiting", 0.0)]
        figures = "{:6.2f} {:9.2f} {:12.2f} {:6.2f} {:7.2f}".format(*times, *late)
        ratio = "      " if done.bytes_ratio is None else f"{done.bytes_ratio:6.3f}"
        counts = f"{done.round:5} {done.num_shares:6} {done.num_contributors:6} {done.num_digests:7}"
        print(f"{counts} {figures} {ratio}")
    for name, utilisation in verdict.utilisation.items():
        used = "     -" if utilisation is None else f"{utilisation:6.1%}"
        print(f"{name}: computing {used} of its time, {course.wire_bytes.get(name, 0) / 1e6:.1f} MB sent in all")
    print(f"{course.ended - course.begun:.0f} s; {course.lost_packets} packets lost, {course.late_fraction:.1%} late")
    if verdict.rejoined_seconds is not None:
        print(f"one plan with everybody {verdict.rejoined_seconds:.1f} s after the partition healed")
    if verdict.one_history_seconds is not None:
        print(f"one history {verdict.one_history_seconds:.1f} s after the partition healed")
    show_promises(verdict)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="new directory for swarm.json, the logs and the workdirs")
    parser.add_argument("--profile", default="clean", choices=list(PROFILES))
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--inner-steps", type=int, default=48, help="how long a round computes")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="emulate devices that take so long for an inner step")
    parser.add_argument("--partition", type=float, default=0.0, metavar="SECONDS", help="cut half against half for so long")
    parser.add_argument("--congestion-control", default="cubic", choices=get_args(CongestionControl))
    parser.add_argument("--minutes", type=float, default=3.0, help="the swarm is ended after this time")
    parser.add_argument("--seed", type=int, default=1, help="which packets are lost")
    args = parser.parse_args()
    args.out = new_directory(parser, args.out)
    end_on_sigterm()
    cut = f", half against half for {args.partition:g} s" if args.partition else ""
    settings = f"{args.peers} peers, {PROFILES[args.profile].title}, {args.congestion_control}{cut}"
    print(settings, flush=True)
    is_paced = args.step_seconds > 0
    width, layers = (32, 1) if is_paced else (96, 3)  # 0.04 or 0.36 million parameters
    config = write_config(
        args.out, "wan", rounds=args.rounds, inner_steps=args.inner_steps, width=width, layers=layers, equal_shares=is_paced
    )
    course, members, problems = conduct(args, config)
    partition = None
    if course.cut and course.healed:
        names = [member.name for member in members]
        half = len(names) // 2
        partition = Cut(begun=course.cut, healed=course.healed, sides=(names[:half], names[half:]))
    verdict = judged(members, problems, rounds=args.rounds, partition=partition)
    show(verdict, course)
    document = {"settings": settings, "seed": args.seed, "course": asdict(course), **asdict(verdict)}
    (args.out / "swarm.json").write_text(json.dumps(document, indent=1) + "\n")
    return 1 if verdict.broken else 0


if __name__ == "__main__":
    sys.exit(main())
