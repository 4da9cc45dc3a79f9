"""A run under siege: honest real processes, liars that are admitted in the middle, strangers that flood.

  python -m benchmarks.besieged --workdir DIR                                 8 honest, 3 liars, 2 strangers, 30 minutes
  python -m benchmarks.besieged --workdir DIR --peers 4 --liars 2 --strangers 1 --minutes 5
                                                                              the short form: a small machine, beside other work
  python -m benchmarks.besieged --workdir PEACE-1 --liars 0 --strangers 0     the same run in peace, ...
  python -m benchmarks.besieged --workdir DIR --clean PEACE-1 PEACE-2         ... and the siege whose loss is compared with it

After a third of the time the liars (`bad_peer.py`) join, one of each kind in turn, and the strangers (`stranger.py`) begin.
Real ones have machines of their own, so here they get the processor time that the others leave, but not none: a siege without
a flood shows nothing. These are printed at the end, and checked (exit code 1 where one fails):

- the strangers together had answers to at least 600 frames for each minute of the siege,
- no honest process has ended,
- rounds come at half the pace of before, or more,
- all honest hosts have the same digest after a round, or within three rounds,
- every liar lives, and had work in more than its first five rounds,
- averages that honest hosts applied contain no liar that is known to send something other than, or the opposite of, an average:
  `nan` and `shape` never, `flip` in at most half of the rounds after its first five,
- with `--clean DIR ...`, the directories of runs in peace: the held-out loss is at most the largest of theirs plus 0.03, each
  the median of the last five rounds that all of them evaluated. A siege that lasts as long as they do has fewer rounds.

The text is the standard library's, of which the model learns until the end: a loss that has come to its floor, or that rises
because the text is learned by heart, would show no harm.
"""

import argparse
import math
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.nodes import IN_OWN_SESSION, Event, Member, begin, end, read_events, write_document
from benchmarks.soak import START_SECONDS, Peer, begin_peer, processes_of, say, soak_document
from benchmarks.stranger import frames_answered

LIARS = ("flip", "nan", "replay", "weight", "garbage", "shape")
NEVER_AVERAGED = ("nan", "shape")
CLEAN_MARGIN = 0.03
LEAST_PACE = 0.5
SETTLING_ROUNDS = 5
LEAST_FRAMES = 600
"""The least number of frames per minute of the siege."""
STRANGER_NICENESS = "5"
LAST_LOSSES = 5
"""The number of last evaluated rounds whose median held-out loss is the run's."""
HELDOUT_ROWS = 128
LOOK_SECONDS = 0.5


def heldout_losses(events: Iterable[Event]) -> dict[int, float]:
    """Return the held-out loss in nats per byte by round, from a run's events."""
    ended = [event for event in events if event["event"] == "round"]
    return {event["round"]: event["heldout_loss"] for event in ended if event["heldout_loss"] is not None}


def last_losses(runs: Sequence[Mapping[int, float]]) -> tuple[int, list[float]]:
    """Return the newest round that all of these runs evaluated, and the median of each run over the last such rounds; -1 and
    NaN where there is no such round."""
    rounds = sorted(set(runs[0]).intersection(*runs))[-LAST_LOSSES:]
    if not rounds:
        return -1, [math.nan for _ in runs]
    return rounds[-1], [statistics.median(losses[number] for number in rounds) for losses in runs]


def losses_in_peace(folder: Path) -> dict[int, float]:
    """Return the held-out losses of an earlier run of this program."""
    return heldout_losses(event for workdir in sorted(folder.glob("peer-*/")) for event in read_events(workdir))


class Siege:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.folder: Path = arguments.workdir.resolve()
        self.honest: list[Peer] = []
        self.liars: list[Peer] = []
        self.strangers: list[Member] = []
        self.events: dict[str, list[dict[str, Any]]] = {}
        """The rounds of each honest peer."""
        self.seen_at: dict[int, float] = {}
        """When the first honest peer had ended each round."""
        self.admitted_at = math.inf
        self.siege_seconds = 0.0
        self.ended: list[str] = []
        self.fallen: set[str] = set()
        """Kinds of the liars that ended by themselves."""

    def run(self) -> None:
        self.folder.mkdir(parents=True)
        step = self.arguments.step_seconds
        self.honest = [begin_peer(self.folder, "peer-0", "start", self._write_config(), step_seconds=step)]
        addresses = self.honest[0].addresses(deadline=time.monotonic() + START_SECONDS)
        join = ("join", "--initial-peers", *addresses)
        for index in range(1, self.arguments.peers):
            self.honest.append(begin_peer(self.folder, f"peer-{index}", *join, step_seconds=step))
        began = time.monotonic()
        end = began + 60.0 * self.arguments.minutes
        while (now := time.monotonic()) < end:
            self._look(now)
            if now >= began + 20.0 * self.arguments.minutes and math.isinf(self.admitted_at):
                self._admit(now, join, addresses, end - now)
            time.sleep(LOOK_SECONDS)

    def _admit(self, now: float, join: Sequence[str], addresses: list[str], seconds: float) -> None:
        self.admitted_at, self.siege_seconds = now, seconds
        for index in range(self.arguments.liars):
            kind = LIARS[index % len(LIARS)]
            step = self.arguments.step_seconds
            self.liars.append(begin_peer(self.folder, f"liar-{index}-{kind}", *join, step_seconds=step, kind=kind))
        for index in range(self.arguments.strangers):
            name = f"stranger-{index}"
            command = ["nice", "-n", STRANGER_NICENESS, sys.executable, "-m", "benchmarks.stranger"]
            command += ["--initial-peers", *addresses, "--workdir", str(self.folder / name)]
            command += ["--seconds", f"{0.75 * seconds:.0f}", "--seed", str(index)]
            self.strangers.append(begin(self.folder, name, command, popen=IN_OWN_SESSION))
        kinds = ", ".join(peer.kind for peer in self.liars) or "no"
        say(f"round {max(self.seen_at, default=-1)}: {kinds} liars join, {len(self.strangers)} strangers flood")

    def _look(self, now: float) -> None:
        for peer in self.honest:
            for event in peer.new_rounds():
                self.events.setdefault(peer.name, []).append(event)
                self.seen_at.setdefault(event["round"], now)
            if not peer.is_alive and not any(text.startswith(f"{peer.name} ") for text in self.ended):
                self.ended.append(f"{peer.name} with {peer.process.returncode} in round {max(self.seen_at, default=-1)}")

        self.fallen |= {peer.kind for peer in self.liars if not peer.is_alive}

    def stop(self) -> None:
        for member in (*self.liars, *self.strangers):
            member.kill()
        codes = zip(self.honest, end(self.honest), strict=True)
        self.ended += [f"{peer.name} does not leave" for peer, code in codes if code == -signal.SIGKILL]

    # --- the verdict --------------------------------------------------------------------------------------------------

    def judge(self) -> int:
        time.sleep(2.0)  # daemons notice that their parents are gone
        before, after = self._pace()
        differing, is_unharmed = self._unrepaired(), self._has_the_loss_of_peace()
        averaged = {peer.kind: self._part_averaged(peer) for peer in self.liars}
        say(f"rounds {max(self.seen_at, default=-1) + 1}; {60 * before:.1f} a minute before, {60 * after:.1f} after")
        say(f"honest processes that ended: {', '.join(self.ended) or 'none'}")
        for kind, (part, count) in averaged.items():
            say(f"{kind}: in {part:.0%} of {count} averages after its first {SETTLING_ROUNDS} rounds of work")
        say(f"liars that ended by themselves: {', '.join(sorted(self.fallen)) or 'none'}")
        frames = [frames_answered(stranger.words) for stranger in self.strangers]
        say(f"frames of strangers that were answered: {', '.join(map(str, frames)) or 'none'}")
        say(f"rounds whose digests differ at the end: {differing[:10] or 'none'}")
        left = processes_of(self.folder)
        is_besieged = bool(self.liars or self.strangers)
        checks = {
            "no honest process ends": not self.ended,
            "flood": self.is_flooded(frames),
            "pace": not is_besieged or after >= LEAST_PACE * before,
            "same digests": not differing,
            "liars at work": not self.fallen and all(count > 0 for _, count in averaged.values()),
            "liars left out": all(
                part <= (0.0 if kind in NEVER_AVERAGED else 0.5 if kind == "flip" else 1.0)
                for kind, (part, _) in averaged.items()
            ),
            "held-out loss": is_unharmed,
            "nothing left": not left,
        }
        failed = [name for name, is_good in checks.items() if not is_good]
        say(f"FAILED: {', '.join(failed)}" if failed else f"passed: {', '.join(checks)}")
        return 1 if failed else 0

    def is_flooded(self, frames: Sequence[int]) -> bool:
        """Return whether these strangers, if there are any, sent enough for a flood."""
        return not frames or sum(frames) >= LEAST_FRAMES * self.siege_seconds / 60.0

    def _pace(self) -> tuple[float, float]:
        """Return the rounds per second before the siege and during it."""
        times = sorted(self.seen_at.values())
        paces = []
        for part in ([at for at in times if at < self.admitted_at], [at for at in times if at >= self.admitted_at]):
            paces.append((len(part) - 1) / (part[-1] - part[0]) if len(part) > 2 else 0.0)
        return paces[0], paces[1]

    def _unrepaired(self) -> list[tuple[int, int]]:
        rounds: dict[tuple[int, int], set[str]] = {}
        for events in self.events.values():
            for event in events:
                rounds.setdefault((event["round"], event["instance"]), set()).add(event["digest"])
        return [
            (number, instance)
            for number, instance in sorted(rounds)
            if all(len(rounds.get((number + ahead, instance), "xx")) > 1 for ahead in range(4))
        ]

    def _has_the_loss_of_peace(self) -> bool:
        """Return whether the held-out loss is a number, and no higher than runs in peace explain, where there are any."""
        own = heldout_losses(event for events in self.events.values() for event in events)
        newest, (loss,) = last_losses([own])
        say(f"held-out loss {loss:.4f} after round {newest}")
        if not self.arguments.clean:
            return math.isfinite(loss)
        newest, (loss, *clean) = last_losses([own, *map(losses_in_peace, self.arguments.clean)])
        in_peace = ", ".join(f"{one:.4f}" for one in clean)
        say(f"held-out loss after round {newest}: {loss:.4f}; in peace {in_peace}; {loss - max(clean):+.4f} to the largest")
        is_late_enough = self.seen_at.get(newest, -math.inf) > self.admitted_at  # an earlier round shows nothing of the siege
        return is_late_enough and loss <= max(clean) + CLEAN_MARGIN

    def _part_averaged(self, liar: Peer) -> tuple[float, int]:
        """Return the part of the averages of several hosts that contains the liar's work, and how many averages there were."""
        me, work = liar.peer_id, self._work_of(liar)
        seen = [event for events in self.events.values() for event in events]
        ends = [event for event in seen if not event["is_void"] and len(event["hosts"]) > 1]
        counted = [event for event in ends if event["round"] in work[SETTLING_ROUNDS:]]
        return sum(me in event["hosts"] for event in counted) / max(1, len(counted)), len(counted)

    def _work_of(self, liar: Peer) -> list[int]:
        """Return the rounds in which the plans give it samples. Its own events show no samples where it was left out."""
        me = liar.peer_id
        plans = [event for event in read_events(self.honest[0].workdir) if event["event"] == "plan"]
        hosts = {plan["round"]: [share for item in plan["instances"] for share in item["hosts"]] for plan in plans}
        return [
            number for number, shares in sorted(hosts.items()) if any(s["peer"] == me and s["batch_samples"] for s in shares)
        ]

    def _write_config(self) -> Path:
        document = soak_document(self.folder, inner_steps=self.arguments.inner_steps, instances=1)
        document["averaging"] = {"aggregation": "robust"}
        document["data"] = {"source": "python", "sequence_length": 64}
        document["evaluation"] = {"rows": HELDOUT_ROWS, "period_rounds": 1}
        return write_document(self.folder, document | {"name": "besieged"})


def main() -> int:
    parser = argparse.ArgumentParser(description="A run under siege.")
    parser.add_argument("--peers", type=int, default=8, help="honest ones")
    parser.add_argument("--liars", type=int, default=3)
    parser.add_argument("--strangers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--inner-steps", type=int, default=40)
    parser.add_argument("--step-seconds", type=float, default=0.1, help="of every peer's device; 0: as fast as it can")
    parser.add_argument("--clean", type=Path, nargs="*", default=[], metavar="DIR", help="directories of runs in peace")
    parser.add_argument("--workdir", type=Path, required=True, help="new directory")
    arguments = parser.parse_args()
    for folder in arguments.clean:
        if not losses_in_peace(folder):
            parser.error(f"--clean {folder}: holds no held-out losses; name the --workdir of a run in peace that has ended")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    say(
        f"{arguments.peers} honest, {arguments.liars} liars, {arguments.strangers} strangers, {arguments.minutes:g} minutes,"
        f" load {psutil.getloadavg()[0]:.0f} on {psutil.cpu_count()} cores"
    )
    siege = Siege(arguments)
    try:
        siege.run()
    finally:
        siege.stop()
    return siege.judge()


if __name__ == "__main__":
    raise SystemExit(main())
