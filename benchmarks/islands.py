"""Do instances pay where machines are islands? Two groups of hosts, 1 Gbit/s inside, 20 Mbit/s for each group to the outside.

python -m benchmarks.islands run --seeds 1 2 3    train what the kept records and islands.jsonl lack; 3 to 30 core seconds each
python -m benchmarks.islands report               the table from both, into docs/results/method.md; keeps the records of both

One instance over all hosts, against one per island, merged now and then and at the end. Every row has as many samples as fit
the same emulated time, so that each ends with its learning rate decayed. Core, training and averaging are the product's
(`benchmarks/method/world.py`); machine and links are stated (`benchmarks/method/clock.py`).

Planned, before there was a run of the guarded row or of the row without a border, and with one seed of one island alone:
does the second island pay at all (one instance without a border, and each way to bridge it, minus one island alone); do
instances as the product has them, forked and guarded, pay beside one instance over all; do merges that are not in the product
pay beside the best H of one instance. All other comparisons are exploratory. Seeds 4 and 5 of the rows of these three questions
(`--planned`) were added when three were known, for narrower intervals of the same comparisons. The row of four hosts that is
merged every 4 rounds is not among them: its records are kept, and it cannot be trained any more. Since they were made a host
that begins late ends its inner steps early, which these runs do not model (`benchmarks/method/device.py` refuses it). Intervals
corrected for all comparisons of the three questions, COMPARISONS, were added last.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.method.clock import PROFILES, Profile
from benchmarks.method.figures import estimate, losses_of, shown
from benchmarks.method.report import rewrite
from benchmarks.method.rows import Row, adloco
from benchmarks.method.run import BASE, run_row
from benchmarks.method.store import RESULTS, Record, command_line, key_of, pack, records_by_key, train_missing

KEPT = RESULTS / "islands.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""
SECONDS = 5400.0
"""Emulated time of every run: 1,080 inner steps without any communication."""
NUM_ISLANDS = 2
BATCH = 2
"""Samples of a host per inner step: constant, so that the time of a run is known beforehand."""
SIZES = (2, 4)
"""Hosts of an island."""
ALONE = "one island alone"
MERGED = "one an island, merged every {} rounds, merges in int8"
LONG, NO_BORDER = "one instance, int8, H 128", "one instance, int8, no border, H 16"
GUARDED = "one an island, forked after 4 rounds, merged at the end, guarded"
BRIDGES = {2: (GUARDED, MERGED.format(4), MERGED.format(8)), 4: (MERGED.format(4),)}
"""The rows with an instance an island that answer a planned question, by hosts of an island."""
BASES = (LONG, ALONE)
"""The rows with which others are compared: one instance over all, with the H that ends lowest on these seeds; and half of the
machines."""
COMPARISONS = [
    (hosts, name, base)
    for hosts, bridges in BRIDGES.items()
    for base, names in ((ALONE, (NO_BORDER, LONG, *bridges)), (LONG, bridges))
    for name in names
]
"""The comparisons of the three planned questions: hosts of an island, row, and the row that is subtracted."""
PLANNED = {(hosts, name) for hosts, *names in COMPARISONS for name in names} - {(4, MERGED.format(4))}
"""The rows of these questions that can still be trained, by hosts of an island and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to use two islands of `hosts` machines."""

    name: str
    hosts: int
    clock: str
    """The profile of these islands, by name."""
    inner_steps: int = 16
    momentum: float = 0.5
    instances: int = 1
    merged_every: int = 0
    """Rounds between merges; 0: at the end only."""
    warm_up: int = 0
    """Rounds before the fork, with all hosts on one instance, which has the batch that each copy has later; 0: equal starts."""
    islands: int = NUM_ISLANDS
    has_overlap: bool = False
    is_guarded: bool = False
    batch: int = BATCH
    """Samples of a host per inner step."""
    seconds: float = SECONDS
    """The most emulated time of the run."""
    more: tuple[str, ...] = ()
    """Settings beside these."""

    @property
    def profile(self) -> Profile:
        return PROFILES[f"islands of {self.hosts}, {self.clock}"]

    @property
    def num_hosts(self) -> int:
        return self.islands * self.hosts

    @property
    def instance_batch(self) -> int:
        return self.batch * self.num_hosts // self.instances

    @property
    def row(self) -> Row:
        return adloco(
            f"2 x {self.hosts}: {self.name}",
            "batch.test=constant",
            f"batch.initial_batch={self.instance_batch}",
            f"work.inner_steps={self.inner_steps}",
            f"outer.momentum={self.momentum}",
            "outer.state=mixed",
            f"averaging.codec={'float32' if self.clock == 'float32' else 'int8'}",
            *([f"instances.fork_round={self.warm_up}"] if self.warm_up else ["instances.start=same"]),
            "merge.policy=none",
            f"merge.guard={str(self.is_guarded).lower()}",
            *(["outer.overlap=forecast"] if self.has_overlap else []),
            *self.more,
            count=self.instances,
            speeds=(1.0,) * self.num_hosts,
            clock=self.profile.name,
            max_instances=1,
            merged_every=self.merged_every,
        )

    @property
    def steps(self) -> int:
        """Inner steps of every host that fit the time, with their averages and merges."""
        profile = self.profile
        step, computing = profile.machine.inner_step(self.batch), self.inner_steps * profile.machine.inner_step(self.batch)
        averaging = profile.averaging(profile.payload_bytes, range(self.num_hosts // self.instances))
        merging = _merging(profile, self.hosts) if self.instances > 1 else 0.0
        tail = (1 + self.is_guarded) * merging + (averaging if self.has_overlap else 0.0)
        alone = 0.0 if self.has_overlap else averaging
        lasting = max(computing, averaging) if self.has_overlap else computing + averaging
        together = profile.averaging(profile.payload_bytes, range(self.num_hosts))
        left, rounds = self.seconds - tail - self.warm_up * (computing + together), self.warm_up
        while True:
            if rounds and self.merged_every and rounds % self.merged_every == 0:
                left -= merging
            if left < lasting:
                return rounds * self.inner_steps + max(0, int((left - alone) // step))
            left, rounds = left - lasting, rounds + 1

    @property
    def samples(self) -> int:
        warming = self.warm_up * self.inner_steps
        return self.batch * self.num_hosts * (self.steps - warming) + self.instance_batch * warming


def _merging(profile: Profile, hosts: int) -> float:
    """Return the seconds in which every host of an island fetches the state of the other island's instance, one after
    another."""
    assert profile.islands is not None
    uplink = profile.islands.uplink
    return hosts * uplink.transfer(profile.state_bytes) + uplink.latency_seconds


def arms(hosts: int) -> list[Arm]:
    """Return the arms, the most important ones first."""
    fits = 16 * hosts  # inner steps that last as long as the average

    def together(name: str, inner_steps: int, *, momentum: float = 0.5, clock: str = "int8", has_overlap: bool = False) -> Arm:
        name = f"one instance, {name}, H {inner_steps}"
        return Arm(name=name, hosts=hosts, clock=clock, inner_steps=inner_steps, momentum=momentum, has_overlap=has_overlap)

    def apart(every: int, *, clock: str = "int8", warm_up: int = 0, is_guarded: bool = False) -> Arm:
        start = f"forked after {warm_up} rounds, " if warm_up else ""
        when = f"merged every {every} rounds" if every else "merged at the end"
        kind = {"int8": "", "int8, merges too": ", merges in int8"}[clock] + ", guarded" * is_guarded
        return Arm(
            name=f"one an island, {start}{when}{kind}",
            hosts=hosts,
            clock=clock,
            instances=NUM_ISLANDS,
            merged_every=every,
            warm_up=warm_up,
            is_guarded=is_guarded,
        )

    return [
        together("int8", 64, momentum=0.7),
        together("int8", 32),
        apart(4, clock="int8, merges too"),
        apart(0),
        together("int8, forecast", fits, has_overlap=True),
        apart(2, clock="int8, merges too"),
        Arm(name=ALONE, hosts=hosts, clock="int8", islands=1),
        apart(0, warm_up=4),
        apart(8),
        together("int8", 128, momentum=0.7),
        apart(8, clock="int8, merges too"),
        together("int8, sums inside", 32, clock="int8, sums inside"),
        apart(4),
        apart(2),
        together("float32", 128, momentum=0.7, clock="float32"),
        apart(0, warm_up=4, is_guarded=True),
        together("int8, no border", 16, clock="int8, no border"),
    ]


# --- the command -----------------------------------------------------------------------------------------------------


def _key(arm: Arm, seed: int) -> str:
    return key_of(arm.row, seed, samples=arm.samples, base=BASE.read_text("utf-8"))


def train(arguments: argparse.Namespace) -> None:
    """Train all rows of one seed before the next seed."""
    wanted = [(arm, seed) for seed in arguments.seeds for hosts in arguments.hosts for arm in arms(hosts)]
    wanted = [(arm, seed) for arm, seed in wanted if not arguments.planned or (arm.hosts, arm.name) in PLANNED]
    jobs = ((_key(arm, seed), partial(run_row, arm.row, seed, samples=arm.samples)) for arm, seed in wanted)
    train_missing(KEPT, arguments.output, jobs)


def tabulate(arguments: argparse.Namespace) -> None:
    """Write the table of docs/results/method.md, and the packed records, by their keys."""
    records = records_by_key(KEPT, arguments.runs)
    seeds = sorted({record["seed"] for record in records.values()})
    every = [arm for hosts in SIZES for arm in arms(hosts)]
    runs = {arm.row.name: {seed: records[key] for seed in seeds if (key := _key(arm, seed)) in records} for arm in every}
    rewrite(RESULTS / "method.md", {"islands": table(runs), "islands, planned": planned_table(runs)})
    pack([record for found in runs.values() for record in found.values()], RESULTS / KEPT.name)


def table(runs: Mapping[str, Mapping[int, Record]]) -> list[str]:
    """Return final losses after the same emulated time, and their difference to the rows of BASES with the same islands and
    seed."""
    lines = [
        "| islands: row | seeds | rounds | inner steps | minutes | computing | final loss | minus one instance, H 128"
        " | minus one island alone |",
        "|" + "---|" * 9,
    ]
    for hosts in SIZES:
        names = [arm.row.name for arm in arms(hosts)]
        bases = {name: losses_of(runs[name].values()) for name in (f"2 x {hosts}: {base}" for base in BASES)}
        for name in names:
            if found := list(runs[name].values()):
                above = [shown(losses_of(found), losses) if name != base else "" for base, losses in bases.items()]
                lines.append(f"| {name} | {' | '.join([*_cells(found), *above])} |")
    return lines


def planned_table(runs: Mapping[str, Mapping[int, Record]]) -> list[str]:
    """Return the comparisons of the three planned questions."""
    lines = ["| islands: row | minus | seeds | difference | corrected |", "|" + "---|" * 5]
    for hosts, *names in COMPARISONS:
        left, right = (losses_of(runs[f"2 x {hosts}: {name}"].values()) for name in names)
        differences = [shown(left, right, count) for count in (1, len(COMPARISONS))]
        lines.append(f"| 2 x {hosts}: {' | '.join([*names, str(len(left.keys() & right.keys())), *differences])} |")
    return lines


def _cells(found: Sequence[Record]) -> list[str]:
    return [
        str(len(found)),
        str(found[0]["rounds"]),
        str(found[0]["inner_steps"]),
        f"{found[0]['seconds'] / 60:.0f}",
        f"{found[0]['utilisation']:.0%}",
        estimate([record["loss"] for record in found]).shown(3),
    ]


def main() -> None:
    line = command_line("islands", __doc__, seeds=[1, 2, 3], train=train, tabulate=tabulate)
    line.run.add_argument("--hosts", nargs="+", type=int, choices=SIZES, default=list(SIZES), help="of an island")
    line.run.add_argument("--planned", action="store_true", help="only the rows of the three questions")
    line.act()


if __name__ == "__main__":
    main()
