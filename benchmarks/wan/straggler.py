"""An average of real nodes that ends without the one whose uplink fails, over emulated links.

    python -m benchmarks.wan.straggler --out DIRECTORY [--peers 4] [--slow-mbit 0.5] [--codec int8]
    python -m benchmarks.wan.straggler --out DIRECTORY --wait             without a quorum, for comparison
    python -m benchmarks.wan.straggler --out DIRECTORY --stays 16         the link stays slow for so many rounds

Every peer is `adloco-peer` in a network namespace of its own, with a device that takes `--step-seconds` for an inner step. When
all have been in some averages together, so that plans know their links, the last one's uplink slows down to `--slow-mbit`
while the peers compute, until the others have ended that round. The command ends with 1 where one of these fails:

- the others end the round without it, because it is a straggler (`work.quorum`; not with `--wait`), and leave out nobody else;
- it takes its contribution back: it carries all of it to its next pseudo-gradient, and in other rounds what the codec lost;
- it is in a later average;
- all that ended a round have the same parameters after it.

In the table, `average` are the seconds of the slowest of the others from the end of its inner steps to the committed average.

With `--stays` it promises only that no round is void for the others and that all that took an outer step have the same
parameters after it, and prints how much longer these rounds took the others than as many of the rounds before.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from adloco_p2p.swarm.p2p.identity import Identity
from benchmarks.nodes import Member, end, end_on_sigterm, new_directory, write_config
from benchmarks.wan.lab import Laboratory, Link, begin_in

COMMON_ROUNDS = 5
"""Averages of all peers, before the link fails."""
LOOK_SECONDS = 0.3
LEFT_OUT = re.compile(r"left out of round (\d+): [^;]*")
CARRIED = re.compile(r"^carried from round (\d+): ([\d.]+)$", re.MULTILINE)
LARGEST_LOSS = 0.2
"""The part of a contribution's norm that a codec may lose; a host that was left out carries all of it."""
BEFORE_AVERAGE = ("training", "waiting")
"""Phases of a round in which a host does not average."""


# --- a peer ---------------------------------------------------------------------------------------------------------------


def act(step_seconds: float, arguments: Sequence[str]) -> int:
    """Run the node, and print after every outer step how much of its contribution it carries to the next one, by norm."""
    from adloco_p2p.cli import main as node
    from adloco_p2p.training.hosting import Hosting
    from benchmarks.paced import pace

    apply_outer = Hosting.apply_outer

    def applied(self: Hosting, instance: Any, averaged: Any, *, round: int, residual: Any = None) -> bool:
        whole = float(self.pseudo_gradient(instance).norm())
        carried = float(residual.norm()) if residual is not None else 0.0
        print(f"carried from round {round}: {carried / whole if whole else 0.0:.4f}", flush=True)
        return apply_outer(self, instance, averaged, round=round, residual=residual)

    Hosting.apply_outer = applied  # type: ignore[assignment, method-assign]
    pace(step_seconds)
    return node(arguments)


# --- the course -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one round."""

    round: int
    num_hosts: int
    """Hosts in its average."""
    has_slow: bool
    """Whether the host whose link fails is among them."""
    seconds: float
    """Seconds of the slowest of the others, from the end of its inner steps."""
    carried: float | None
    """The part of its contribution that the slow host carries; None where it did no outer step."""
    num_digests: int


def make_identities(out: Path, hosts: Sequence[str], *, leads: bool) -> None:
    """Make the peers' keys, so that the last host has the smallest id, and leads retries, or the largest."""
    keys = [out / f"{host}.key" for host in hosts]
    ordered = sorted(keys, key=lambda key: Identity.load_or_create(key).peer_id, reverse=leads)
    for host, key in zip(hosts, ordered, strict=True):
        (out / host).mkdir()
        key.rename(out / host / "identity.key")


class Swarm:
    """The peers of one run; the last one's link fails."""

    def __init__(self, lab: Laboratory, args: argparse.Namespace, config: Path) -> None:
        self._deadline = time.monotonic() + 60 * args.minutes
        self._lab, self._args = lab, args
        make_identities(args.out, lab.hosts, leads=args.leads)
        self.members = [self._begin(lab.hosts[0], "start", config)]
        join = ("join", "--initial-peers", *self.members[0].addresses(deadline=self._deadline))
        self.members += [self._begin(host, *join) for host in lab.hosts[1:]]

    def _begin(self, host: str, *arguments: object) -> Member:
        program = ("benchmarks.wan.straggler", "--peer", self._args.step_seconds)
        return begin_in(self._lab, self._args.out, host, *arguments, program=program)

    def rounds(self, member: Member) -> dict[int, dict[str, Any]]:
        return {event["round"]: event for event in member.events() if event["event"] == "round"}

    def wait(self, look: Callable[[], Any], what: str) -> Any:
        """Return the first true result of `look`."""
        while not (found := look()):
            if time.monotonic() > self._deadline or not all(member.is_alive for member in self.members):
                sys.exit(f"in vain waited for {what}; see the logs")
            time.sleep(LOOK_SECONDS)
        return found

    def name(self, member: Member) -> str:
        return next(str(event["peer"]) for event in member.events() if event["event"] == "started")

    def are_all_in(self, count: int, *, since: int = 0) -> bool:
        """Return whether so many averages contained all peers."""
        whole = [event for event in self.rounds(self.members[0]).values() if len(event["hosts"]) == len(self.members)]
        return sum(event["round"] >= since for event in whole) >= count


def slowed(link: Link, mbit: float) -> Link:
    return replace(link, up_mbit=mbit, queue_kb=link.queue_kb * mbit / link.up_mbit + 16)


def conduct(swarm: Swarm, lab: Laboratory, link: Link, slow_mbit: float) -> int:
    """Return the round in which the link failed."""
    swarm.wait(lambda: swarm.are_all_in(COMMON_ROUNDS), f"{COMMON_ROUNDS} averages of all")
    failing = max(swarm.rounds(swarm.members[0])) + 1
    lab.change(slowed(link, slow_mbit))
    swarm.wait(lambda: all(failing in swarm.rounds(other) for other in swarm.members[:-1]), f"round {failing}")
    lab.change(link)
    swarm.wait(lambda: swarm.are_all_in(2, since=failing + 1), f"two averages of all after round {failing}")
    return failing


def conduct_stays(swarm: Swarm, lab: Laboratory, link: Link, slow_mbit: float, rounds: int) -> int:
    """Let the link fail for good, and return the round in which it did, once the others have ended so many rounds with it."""
    swarm.wait(lambda: swarm.are_all_in(COMMON_ROUNDS), f"{COMMON_ROUNDS} averages of all")
    failing = max(swarm.rounds(swarm.members[0])) + 1
    lab.change(slowed(link, slow_mbit))
    last = failing + rounds - 1
    swarm.wait(lambda: all(last in swarm.rounds(other) for other in swarm.members[:-1]), f"round {last}")
    return failing


def cost(swarm: Swarm, failing: int, rounds: int) -> tuple[float, float]:
    """Return the seconds of the rounds with the slow link for the slowest of the others, and of as many rounds before."""
    ended = [{number: event["time"] for number, event in swarm.rounds(other).items()} for other in swarm.members[:-1]]
    at = {number: max(times[number] for times in ended) for number in ended[0] if all(number in times for times in ended)}
    before = [at[number] - at[number - 1] for number in range(failing - 3, failing)]
    return at[failing + rounds - 1] - at[failing - 1], rounds * median(before)


def rows_of(swarm: Swarm, *, stays: bool = False) -> list[Row]:
    """Return a row for each round that all peers ended, or all but the slow one where its link stays slow."""
    slow = swarm.members[-1]
    name, carried = swarm.name(slow), {int(number): float(part) for number, part in CARRIED.findall(slow.words)}
    ended = [swarm.rounds(member) for member in swarm.members]
    rows = []
    for number in sorted(set.intersection(*map(set, ended[:-1] if stays else ended))):
        events = [rounds[number] for rounds in ended if number in rounds]
        spent = [sum(s for phase, s in e["seconds"].items() if phase not in BEFORE_AVERAGE) for e in events[: len(ended) - 1]]
        rows.append(
            Row(
                round=number,
                num_hosts=len(events[0]["hosts"]),
                has_slow=name in events[0]["hosts"],
                seconds=max(spent),
                carried=carried.get(number),
                num_digests=len({event["digest"] for event in events if not (stays and event["is_void"])}),
            )
        )
    return rows


def broken_promises(rows: Sequence[Row], reasons: Sequence[str], *, failing: int, waits: bool, num_peers: int) -> list[str]:
    failed = next(row for row in rows if row.round == failing)
    later = [row for row in rows if row.round > failing]
    promises = {
        "all others are in that average": waits or failed.num_hosts == num_peers - 1,
        "it is left out as a straggler": waits or (not failed.has_slow and any(f"of round {failing}:" in r for r in reasons)),
        "it takes its contribution back": waits or failed.carried == 1.0,
        "in other rounds it carries what the codec lost": all(
            row.carried is not None and row.carried < LARGEST_LOSS for row in rows if row.has_slow
        ),
        "it is in a later average": any(row.has_slow for row in later),
        "one digest in every round": all(row.num_digests == 1 for row in rows),
    }
    return [promise for promise, is_kept in promises.items() if not is_kept]


def broken_by_stays(rows: Sequence[Row], swarm: Swarm) -> list[str]:
    events = [event for member in swarm.members[:-1] for event in swarm.rounds(member).values()]
    promises = {
        "no round is void": not any(event["is_void"] for event in events),
        "one digest in every round": all(row.num_digests <= 1 for row in rows),
    }
    return [promise for promise, is_kept in promises.items() if not is_kept]


def show(rows: Sequence[Row], reasons: Sequence[str], failing: int) -> None:
    print("round  hosts  with the slow one  average  carried  digests")
    for row in rows:
        mark = "  <- its link failed" if row.round == failing else ""
        carried = "-" if row.carried is None else f"{row.carried:.3f}"
        print(f"{row.round:5} {row.num_hosts:6} {row.has_slow!s:>18} {row.seconds:8.1f} {carried:>8} {row.num_digests:8}{mark}")
    for reason in reasons:
        print(reason)


def main() -> int:
    if sys.argv[1:2] == ["--peer"]:
        return act(float(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="new directory for straggler.json, the logs and the workdirs")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--codec", default="int8", help="one with error feedback")
    parser.add_argument("--mbit", type=float, default=50.0, help="of every link, each way")
    parser.add_argument("--slow-mbit", type=float, default=0.5, help="of the uplink that fails")
    parser.add_argument("--inner-steps", type=int, default=16)
    parser.add_argument("--step-seconds", type=float, default=0.5)
    parser.add_argument("--wait", action="store_true", help="without a quorum")
    parser.add_argument("--stays", type=int, default=0, help="rounds for which the link stays slow; 0: it recovers after one")
    parser.add_argument("--leads", action="store_true", help="the peer whose link fails has the smallest id, and leads retries")
    parser.add_argument("--minutes", type=float, default=8.0)
    args = parser.parse_args()
    args.out = new_directory(parser, args.out)
    end_on_sigterm()
    config = write_config(
        args.out, "straggler", rounds=10_000, inner_steps=args.inner_steps, width=256, layers=3, equal_shares=True
    )
    document = yaml.safe_load(config.read_text())
    document["averaging"] = {"codec": args.codec}
    document["work"] |= {"quorum": None} if args.wait else {}
    config.write_text(yaml.safe_dump(document))
    links = [Link(name=f"peer-{k}", up_mbit=args.mbit, down_mbit=args.mbit, delay_ms=12.5) for k in range(args.peers)]
    with Laboratory(links) as lab:
        swarm = Swarm(lab, args, config)
        course = partial(conduct_stays, rounds=args.stays) if args.stays else conduct
        failing = course(swarm, lab, links[-1], args.slow_mbit)
        end(swarm.members)
    rows = rows_of(swarm, stays=args.stays > 0)
    failures = [str(e["reason"]) for m in swarm.members for e in m.events() if e["event"] == "average_failed"]
    reasons = sorted({match[0] for reason in failures if (match := LEFT_OUT.search(reason))})
    show(rows, reasons, failing)
    if args.stays:
        took, usual = cost(swarm, failing, args.stays)
        print(f"{args.stays} rounds took the others {took:.0f} s instead of {usual:.0f} s: {took / usual - 1:+.0%}")
        broken = broken_by_stays(rows, swarm)
    else:
        broken = broken_promises(rows, reasons, failing=failing, waits=args.wait, num_peers=args.peers)
    print(f"FAILED: {'; '.join(broken)}" if broken else "every promise was kept")
    rest = {"failing": failing, "reasons": reasons, "broken": broken, "rows": [asdict(row) for row in rows]}
    settings = {key: str(value) for key, value in vars(args).items() if key != "out"}
    (args.out / "straggler.json").write_text(json.dumps({"settings": settings, **rest}, indent=1) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
