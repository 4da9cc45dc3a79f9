"""Tokens per second where a host is killed again and again: whole peers in virtual time, without tensors.

python -m benchmarks.churn                              8 hosts, rounds of 60 s, a kill -9 every 60 s, back after 30 s
python -m benchmarks.churn --round-seconds 60 --megabytes 24 --mbit 25 --rounds 40 --seeds 3

Two runs for each seed, with the same devices and links: undisturbed, and with the kills. Counted are the samples that signed
reports prove, from the fourth round on; a host's part in a round that it did not end is lost. `of those alive` is the pace
beside the undisturbed one times the part of the time in which hosts ran. A simulated retry averages everything again
(`sim/averaging.py`), which real ones do only before the barrier.
"""

import argparse
from dataclasses import dataclass, replace
from statistics import fmean

from adloco_p2p.core.model.events import RunInner
from adloco_p2p.core.model.rules import AdmissionRules, BatchRules, InstanceRules, Rules, WorkRules
from adloco_p2p.sim.device import HashDevice
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.links import VECTOR_BYTES
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.world import Parts, World

HOSTS, BATCH, STEPS = 8, 256, 4
SETTLED_ROUND = 4
"""From this round on the pace is measured: speeds and links are known then."""


class SpeedDevice(HashDevice):
    """It takes the time that its samples take, a little more or less; `round_seconds` are those of an eighth of the batch."""

    def inner_seconds(self, effect: RunInner) -> float:
        seconds_per_sample = self._traits.round_seconds * HOSTS / (BATCH * STEPS)
        return effect.share.samples * seconds_per_sample * self._random.uniform(0.97, 1.03)


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """Seconds of virtual time."""

    every_seconds: float = 60.0
    back_seconds: float = 30.0


class ChurnWorld(World):
    """A host that was killed starts again after a while."""

    churn: Churn | None = None

    def begin(self, churn: Churn, *, until: float) -> None:
        self.churn = churn
        for number in range(1, int(until / churn.every_seconds)):
            self.queue.at(number * churn.every_seconds, self._kill)

    def _kill(self) -> None:
        able = self._able()
        if len(able) == HOSTS:
            self.random.choice(able).crash("kill -9")

    def _on_crash(self, machine: Machine) -> None:
        assert self.churn is not None
        self.queue.after(self.churn.back_seconds, machine.boot)


def samples_per_second(
    seed: int, *, rounds: int, round_seconds: float, vector_seconds: float, churn: Churn | None
) -> tuple[float, float]:
    """That reports prove; and the seconds of a round. Raises Violation."""
    rules = Rules(
        work=WorkRules(rounds=rounds, inner_steps=STEPS),
        instances=InstanceRules(count=1),
        batch=BatchRules(initial_batch=BATCH, max_batch=BATCH, test="constant"),
        admission=AdmissionRules(kind="open"),
    )
    until = rounds * (round_seconds + 2 * vector_seconds) if churn is not None else 0.0
    faults = replace(Faults(), faults_end_at=until, skew_seconds=0.0, crash_chance=1e-12 if churn is not None else 0.0)
    world = ChurnWorld(
        seed,
        peers=HOSTS,
        rounds=rounds,
        faults=faults,
        round_seconds=round_seconds,
        rules=rules,
        parts=Parts(rates=dict.fromkeys(range(HOSTS), VECTOR_BYTES / vector_seconds), device=SpeedDevice),
    )
    if churn is not None:
        world.begin(churn, until=until)
    world.limit_seconds = 4 * rounds * (round_seconds + 2 * vector_seconds)
    world.run()
    ended = {number: sorted(times)[len(times) // 2] for number, times in world.reported.items()}
    first, last = SETTLED_ROUND - 1, max(ended) - 1
    signed = [item.report for entry in world.ledger() for item in entry.reports]
    reports = {(report.peer, report.round): report for report in signed}
    done = sum(item.samples for (_, number), report in reports.items() if first < number <= last for item in report.instances)
    return done / (ended[last] - ended[first]), (ended[last] - ended[first]) / (last - first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round-seconds", type=float, default=60.0, help="that a host computes")
    parser.add_argument("--every-seconds", type=float, default=60.0, help="from one kill to the next")
    parser.add_argument("--back-seconds", type=float, default=30.0, help="from a kill to the restart")
    parser.add_argument("--megabytes", type=float, default=24.0, help="of a pseudo-gradient as it travels")
    parser.add_argument("--mbit", type=float, default=25.0, help="of every link, each way")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    churn = Churn(every_seconds=args.every_seconds, back_seconds=args.back_seconds)
    settings = {
        "rounds": args.rounds,
        "round_seconds": args.round_seconds,
        "vector_seconds": 8 * args.megabytes / args.mbit,
    }
    alive = 1 - args.back_seconds / args.every_seconds / HOSTS
    parts = []
    for seed in range(args.seeds):
        (whole, usual), (left, longer) = (samples_per_second(seed, churn=each, **settings) for each in (None, churn))
        parts.append(left / whole)
        print(
            f"seed {seed}: {whole:.2f} samples/s in rounds of {usual:.1f} s, with kills {left:.2f} in {longer:.1f} s: "
            f"{left / whole:.0%}, {left / whole / alive:.0%} of those alive",
            flush=True,
        )
    print(f"mean: {fmean(parts):.1%} of the undisturbed pace, {fmean(parts) / alive:.1%} of that of those alive")


if __name__ == "__main__":
    main()
