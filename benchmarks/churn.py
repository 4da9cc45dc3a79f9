"""Tokens per second where a host is killed again and again: whole peers in virtual time, without tensors.

python -m benchmarks.churn                              8 hosts, rounds of 60 s, a kill -9 every 60 s, back after 30 s
python -m benchmarks.churn --round-seconds 60 --megabytes 24 --mbit 25 --rounds 40 --seeds 0 1 2

Two runs for each seed, with the same devices and links: undisturbed, and with the kills. Counted are the samples that signed
reports prove, from the fourth round to the last but one; a host's part in a round that it did not end is lost. `of those alive`
is the pace beside the undisturbed one times the part of the time in which hosts ran. Hosts are killed until the last round is
reported. Printed with it: where the seconds of a host go. A simulated retry averages everything again (`sim/averaging.py`),
which real ones do only before the barrier.
"""

import argparse
from dataclasses import dataclass, replace
from statistics import fmean

from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.links import VECTOR_BYTES
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.synthetic_reports import CAPACITY
from adloco_p2p.sim.world import Parts, World
from benchmarks.churn_account import BETWEEN, DOWN, Account, table
from benchmarks.steady_hosts import constant_rules, speed_device

HOSTS, BATCH, STEPS = 8, 256, 32
SETTLED_ROUND = 4
"""The round from which the pace is measured: speeds and links are known then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """How often a host is killed and when it is back, in seconds of virtual time."""

    every_seconds: float = 60.0
    back_seconds: float = 30.0


class ChurnWorld(World):
    """A world in which a killed host starts again after a while. Hosts are killed until one has reported the last round."""

    churn: Churn | None = None
    account: Account
    last_round: int
    num_kills = num_skipped = 0

    def begin(self, churn: Churn, *, last_round: int) -> None:
        self.churn, self.last_round = churn, last_round
        self.queue.after(churn.every_seconds, self._kill)

    def _kill(self) -> None:
        assert self.churn is not None
        if self.last_round in self.reported:
            return
        if able := self._able():
            self.num_kills += 1
            self.random.choice(able).crash("kill -9")
        else:
            self.num_skipped += 1
        self.queue.after(self.churn.every_seconds, self._kill)

    def _on_crash(self, machine: Machine) -> None:
        assert self.churn is not None
        self.account.note(machine.peer, self.queue.now, DOWN)
        self.queue.after(self.churn.back_seconds, self._boot, machine)

    def _boot(self, machine: Machine) -> None:
        """Boot the machine, unless others have ended the run: nobody would be there to serve the model."""
        machine.is_gone = any(self._has_stopped(other) for other in self.machines.values())
        self.account.note(machine.peer, self.queue.now, BETWEEN)
        machine.boot()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of the rounds from `SETTLED_ROUND` to the last but one."""

    samples_per_second: float
    """Samples per second that reports prove."""
    round_seconds: float
    alive: float
    """Part of the host seconds in which the hosts ran."""
    num_kills: int
    num_skipped: int
    """Kills for which no host ran."""
    purposes: dict[str, float]
    """Where the seconds of a host went, per round."""


def played(seed: int, *, rounds: int, round_seconds: float, vector_seconds: float, churn: Churn | None) -> Result:
    """Play one run. Raises Violation."""
    rules = constant_rules(WorkRules(rounds=rounds, inner_steps=STEPS), batch=BATCH)
    account = Account()
    world = ChurnWorld(
        seed,
        peers=HOSTS,
        rounds=rounds,
        faults=replace(Faults(), faults_end_at=0.0, skew_seconds=0.0, crash_chance=1e-12 if churn is not None else 0.0),
        round_seconds=round_seconds,
        rules=rules,
        parts=Parts(
            capacity=replace(CAPACITY, samples_per_second=0.0),  # as a node starts
            rates=dict.fromkeys(range(HOSTS), VECTOR_BYTES / vector_seconds),
            device=speed_device(BATCH * STEPS / HOSTS),
            peer=account.peer,
        ),
    )
    world.account = account
    if churn is not None:
        world.begin(churn, last_round=rounds - 1)
    world.limit_seconds = 8 * rounds * (round_seconds + 2 * vector_seconds)
    world.run()
    return _result(world, account)


def _result(world: ChurnWorld, account: Account) -> Result:
    ended = {number: sorted(times)[len(times) // 2] for number, times in world.reported.items()}
    first, last = SETTLED_ROUND - 1, max(ended) - 1
    signed = [item.report for entry in world.ledger() for item in entry.reports]
    reports = {(report.peer, report.round): sum(item.samples for item in report.instances) for report in signed}
    done = sum(samples for (_, number), samples in reports.items() if first < number <= last)
    counted = {peer: {number for (who, number), samples in reports.items() if who == peer and samples} for peer, _ in reports}
    seconds, per_round = ended[last] - ended[first], HOSTS * (last - first)
    purposes = table(account, counted, ended[first], ended[last])
    return Result(
        samples_per_second=done / seconds,
        round_seconds=seconds / (last - first),
        alive=1 - purposes.get(DOWN, 0.0) / (HOSTS * seconds),
        num_kills=world.num_kills,
        num_skipped=world.num_skipped,
        purposes={purpose: spent / per_round for purpose, spent in purposes.items()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round-seconds", type=float, default=60.0, help="that a host computes")
    parser.add_argument("--every-seconds", type=float, default=60.0, help="from one kill to the next")
    parser.add_argument("--back-seconds", type=float, default=30.0, help="from a kill to the restart")
    parser.add_argument("--megabytes", type=float, default=24.0, help="of a pseudo-gradient as it travels")
    parser.add_argument("--mbit", type=float, default=25.0, help="of every link, each way")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    if args.rounds < SETTLED_ROUND + 3:
        parser.error(
            f"--rounds {args.rounds}: at least {SETTLED_ROUND + 3}, for the first {SETTLED_ROUND} and the last are not measured"
        )
    churn = Churn(every_seconds=args.every_seconds, back_seconds=args.back_seconds)
    settings = {
        "rounds": args.rounds,
        "round_seconds": args.round_seconds,
        "vector_seconds": 8 * args.megabytes / args.mbit,
    }
    parts = []
    for seed in args.seeds:
        quiet, killed = (played(seed, churn=each, **settings) for each in (None, churn))
        pace = killed.samples_per_second / quiet.samples_per_second
        parts.append(pace / killed.alive)
        print(
            f"seed {seed}: {quiet.samples_per_second:.2f} samples/s in rounds of {quiet.round_seconds:.1f} s; with "
            f"{killed.num_kills} kills ({killed.num_skipped} skipped) {killed.samples_per_second:.2f} in "
            f"{killed.round_seconds:.1f} s: {pace:.0%}, {parts[-1]:.0%} of those alive"
        )
        print("  seconds of a host per round: undisturbed, with kills")
        for purpose, spent in sorted(killed.purposes.items(), key=lambda item: -item[1]):
            print(f"  {quiet.purposes.get(purpose, 0.0):7.1f} {spent:7.1f}  {purpose}", flush=True)
    print(f"mean: {fmean(parts):.1%} of the undisturbed pace of those alive")


if __name__ == "__main__":
    main()
