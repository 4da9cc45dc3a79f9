"""How long do devices wait for the agreement? Eight real peers on this machine, rounds of ten seconds.

    python -m benchmarks.consensus_idle --out DIRECTORY [--peers 8] [--rounds 12] [--step-seconds 0.4] [--inner-steps 25]

A device needs plan(r+1) as soon as its peer has ended round r; what it waits from then until the peer knows the plan is the
idleness that the agreement costs. Both instants are in the peer's own event file, on one clock. The target is 0.5 % of a round.
Counted are `--rounds` rounds from the first whose plan has everybody in its roster and which everybody trained.

Two cores are not eight devices, so every peer has a device of a stated speed (`benchmarks.paced`); the agreement itself is what
it is anywhere, and it competes with seven others for this machine. `--step-seconds 0` computes as fast as it can instead: then
the event loops compete with eight trainings, too.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.nodes import Event, Member, begin_node, end, write_config

TARGET = 0.005
LOOK_SECONDS = 1.0
ENDLESS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Idleness:
    """The idle time of one peer over the counted rounds."""

    peer: str
    num_rounds: int
    round_seconds: float
    """Median, from the end of a round to the end of the next."""
    idle_seconds: list[float]
    """The wait before every counted round."""
    plan_lead_seconds: float
    """Median time by which the plan was there before it was needed."""

    @property
    def share(self) -> float:
        return sum(self.idle_seconds) / (self.num_rounds * self.round_seconds)


# --- the run ---------------------------------------------------------------------------------------------------------


def conduct(arguments: argparse.Namespace, config: Path) -> list[list[Event]]:
    """Return every peer's events once enough rounds are counted, or the time is over. Raises SystemExit where a peer ended
    early."""
    deadline = time.monotonic() + 60 * arguments.minutes
    members: list[Member] = []
    try:
        members.append(begin_node(arguments.out, "peer-0", "start", config, step_seconds=arguments.step_seconds))
        join = ("join", "--initial-peers", *members[0].addresses(deadline=deadline))
        for number in range(1, arguments.peers):
            members.append(begin_node(arguments.out, f"peer-{number}", *join, step_seconds=arguments.step_seconds))
        while num_counted([member.events() for member in members]) < arguments.rounds and time.monotonic() < deadline:
            if ended := [member.log for member in members if not member.is_alive]:
                sys.exit(f"ended too early: {ended}")
            time.sleep(LOOK_SECONDS)
        return [member.events() for member in members]
    finally:
        end(members)


# --- what the event files say ----------------------------------------------------------------------------------------


def ended_rounds(events: Sequence[Event]) -> dict[int, float]:
    """Return when the peer had ended each round that it trained itself."""
    return {event["round"]: event["time"] for event in events if event["event"] == "round" and event["samples"]}


def known_plans(events: Sequence[Event]) -> dict[int, Event]:
    return {event["round"]: event for event in events if event["event"] == "plan"}


def counted_rounds(files: Sequence[Sequence[Event]]) -> range:
    """Return the rounds that everybody trained right after another one, under plans with everybody."""
    ended = [ended_rounds(events) for events in files]
    plans = known_plans(files[0])
    everybody = [n for n, plan in plans.items() if len(plan["roster"]) == len(files) and all(n in item for item in ended)]
    return range(min(everybody) + 1, max(everybody) + 1) if everybody else range(0)


def num_counted(files: Sequence[Sequence[Event]]) -> int:
    return len(counted_rounds(files))


def idleness(events: Sequence[Event], rounds: range) -> Idleness:
    """Return the idle time of one peer, without rounds that it did not train itself, or not after another one."""
    ended, plans = ended_rounds(events), known_plans(events)
    both = [number for number in rounds if number - 1 in ended and number in ended]
    leads = [ended[number - 1] - plans[number]["time"] for number in both]
    return Idleness(
        peer=str(events[0]["peer"]),
        num_rounds=len(both),
        round_seconds=median(ended[number] - ended[number - 1] for number in both),
        idle_seconds=[max(0.0, -lead) for lead in leads],
        plan_lead_seconds=median(leads),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="new directory for idle.json, the logs and the workdirs")
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12, help="counted rounds")
    parser.add_argument("--inner-steps", type=int, default=25)
    parser.add_argument("--step-seconds", type=float, default=0.4, help="of one inner step; 0: as fast as this machine can")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="the run is ended after this time; an idle machine needs five"
    )
    arguments = parser.parse_args()
    if arguments.out.exists():
        parser.error(f"--out {arguments.out}: exists; name a new directory")
    arguments.out = arguments.out.resolve()
    arguments.out.mkdir(parents=True)
    config = write_config(
        arguments.out,
        "idle",
        rounds=ENDLESS,
        inner_steps=arguments.inner_steps,
        width=32,
        layers=1,
        equal_shares=arguments.step_seconds > 0,
    )
    files = conduct(arguments, config)
    rounds = counted_rounds(files)
    if len(rounds) < 2:
        sys.exit("the time was over before everybody had trained two rounds")
    found = [idleness(events, rounds) for events in files]
    print(f"rounds {rounds[0]} to {rounds[-1]}; load of this machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("peer      rounds  seconds each  plan early by  idle in all  longest   share")
    for item in found:
        idle = f"{sum(item.idle_seconds):9.3f} s {max(item.idle_seconds):6.3f} s"
        times = f"{item.round_seconds:11.2f} s {item.plan_lead_seconds:11.2f} s"
        print(f"{item.peer[-8:]}  {item.num_rounds:6} {times}  {idle} {item.share:7.3%}")
    worst = max(item.share for item in found)
    verdict = "reached" if worst < TARGET else "missed"
    print(f"idle because of the agreement: at most {worst:.3%} of the rounds; the target {TARGET:.1%} is {verdict}")
    (arguments.out / "idle.json").write_text(json.dumps([asdict(item) for item in found], indent=1) + "\n")
    return 0 if worst < TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
