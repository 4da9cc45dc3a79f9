"""How fast is outer averaging over internet links: ours, hivemind's own averager, gloo, and plain sockets as the limit.

    python -m benchmarks.wan.averaging --out DIRECTORY [--profiles clean lossy ...] [--contenders ours raw ...]
                                       [--millions 5] [--codec float32] [--rounds 3] [--congestion-control cubic]

Every peer is a process in a namespace of its own, behind an emulated link; every contender gets a fresh laboratory with the
same seed. Seconds are the slowest peer's from a common start, without matchmaking and dialing, the median over the rounds.
No round is left out as a warm-up: in a real run they are minutes apart, and TCP starts slowly each time. `Mbit/s` is what a
peer sends on average, counted as the 2 (n - 1) / n S bytes that any butterfly needs; `wire` is what all hosts really sent,
over those bytes, both as the codec encodes them. `cpu` is the processor time of all processes of all peers, network daemons
included, per GB of those bytes. `late` is the share of packets that the emulator delivered over 2 ms late: where it is more
than a few per cent, this machine was too slow for its task. `ours` is the plain mean, `robust` the same with that aggregation
rule, `robust recheck` that with parts that are made again.

Ours and hivemind's streams are encrypted; those of gloo and of the plain sockets are not.
"""

import argparse
import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import get_args

from adloco_p2p.numerics.codecs import CODECS, bytes_each_way, codec_named
from benchmarks.barrier import DirectedPeers, PeerFailed
from benchmarks.contenders import CONTENDERS, DTYPES, Task, rounds_of
from benchmarks.nodes import end_on_sigterm
from benchmarks.wan.lab import CongestionControl, Counters, Laboratory, Link

NAMES = "abcdefgh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    title: str
    links: tuple[Link, ...]
    shares: tuple[float, ...] = ()
    """How much each peer reduces, for contenders that take it as an argument; equal where empty."""


def alike(num_peers: int, title: str, *, mbit: float, delay_ms: float, loss: float = 0.0, queue_kb: float = 512) -> Profile:
    link = {"up_mbit": mbit, "down_mbit": mbit, "delay_ms": delay_ms, "loss": loss, "queue_kb": queue_kb}
    return Profile(title=title, links=tuple(Link(name=name, **link) for name in NAMES[:num_peers]))


HOME = tuple(Link(name=name, up_mbit=10 if name == "d" else 100, down_mbit=100, delay_ms=12.5) for name in "abcd")
PROFILES = {
    "clean": alike(3, "100 Mbit/s, 50 ms", mbit=100, delay_ms=12.5),
    "lossy": alike(3, "100 Mbit/s, 50 ms, 1 % loss", mbit=100, delay_ms=12.5, loss=0.01),
    "far": alike(3, "20 Mbit/s, 100 ms, 0.1 % loss", mbit=20, delay_ms=25, loss=0.001),
    # a peer that reduces nothing sends least: its own vector once
    "home": Profile(title="100 Mbit/s, 50 ms, one of four 10 up", links=HOME, shares=(1 / 3, 1 / 3, 1 / 3, 0)),
    "four": alike(4, "100 Mbit/s, 50 ms, four peers", mbit=100, delay_ms=12.5),
    "eight": alike(8, "25 Mbit/s, 50 ms, eight peers", mbit=25, delay_ms=12.5),
    "fast": alike(3, "1 Gbit/s, 10 ms", mbit=1000, delay_ms=2.5, queue_kb=1024),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    seconds: float
    """Seconds of the slowest peer."""
    cpu_seconds: float
    """Processor seconds of all peers."""
    sent_bytes: int
    """Bytes on the wire, by all hosts."""
    lost_packets: int
    """Packets lost by chance."""
    dropped_packets: int
    """Packets dropped at full queues."""
    late_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    profile: str
    contender: str
    needed_bytes: int
    """Bytes that all peers together send in a butterfly."""
    num_peers: int
    rounds: list[Round] = field(default_factory=list)
    problem: str = ""
    """Why there are fewer rounds than requested."""

    @property
    def seconds(self) -> float:
        return median(each.seconds for each in self.rounds)

    @property
    def mbit_per_peer(self) -> float:
        return self.needed_bytes / self.num_peers / self.seconds / 125_000


# --- one contender --------------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace, name: str, contender: str, budget_seconds: float) -> Outcome:
    profile = PROFILES[name]
    num_peers, size = len(profile.links), round(args.millions * 1e6)
    needed_bytes = round((num_peers - 1) * sum(bytes_each_way(codec_named(args.codec), num_peers)) * size)
    outcome = Outcome(profile=name, contender=contender, needed_bytes=needed_bytes, num_peers=num_peers)
    logs = args.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with Laboratory(profile.links, congestion_control=args.congestion_control, seed=args.seed) as lab:
        peers = DirectedPeers(lab.popen, seconds=budget_seconds)
        for rank, link in enumerate(profile.links):
            task = Task(
                contender=contender,
                rank=rank,
                addresses=[lab.address(host) for host in lab.hosts],
                size=size,
                codec=args.codec,
                rounds=args.rounds,
                shares=list(profile.shares or [1 / num_peers] * num_peers),
                up_mbit=link.up_mbit,
            )
            log = logs / f"{name}-{contender}-{link.name}.txt"
            peers.begin(link.name, "benchmarks.contenders", json.dumps(asdict(task)), log=log)
        try:
            for figures, before, after in rounds_of(peers, lambda: list(lab.counters().values())):
                outcome.rounds.append(summarize(figures, before, after))
        except PeerFailed as error:
            return replace(outcome, problem=str(error))
    return outcome


def summarize(figures: list[dict[str, float]], before: list[Counters], after: list[Counters]) -> Round:
    def grown(name: str) -> int:
        return sum(getattr(end, name) - getattr(begin, name) for begin, end in zip(before, after, strict=True))

    return Round(
        seconds=max(each["seconds"] for each in figures),
        cpu_seconds=sum(each["cpu_seconds"] for each in figures),
        sent_bytes=grown("sent_bytes"),
        lost_packets=grown("lost"),
        dropped_packets=grown("up_dropped") + grown("down_dropped"),
        late_fraction=grown("late") / max(1, grown("received_packets")),
    )


# --- all of them ----------------------------------------------------------------------------------------------------------


COMPARED = ("raw", "gloo", "hivemind", "ours", "robust")
HEAD = "profile  contender rounds  seconds  Mbit/s of raw cpu s/GB  wire  late"


def row(outcome: Outcome, raw: Outcome | None) -> str:
    start = f"{outcome.profile:8} {outcome.contender:9} {len(outcome.rounds):6}"
    if not outcome.rounds:
        return f"{start}  {outcome.problem}"
    of_raw = f"{raw.seconds / outcome.seconds:6.0%}" if raw and raw.rounds else f"{'-':>6}"
    gigabytes = outcome.needed_bytes / 1e9
    cpu = median(each.cpu_seconds for each in outcome.rounds) / gigabytes
    wire = median(each.sent_bytes for each in outcome.rounds) / outcome.needed_bytes
    late = max(each.late_fraction for each in outcome.rounds)
    figures = f"{outcome.seconds:8.2f} {outcome.mbit_per_peer:7.1f} {of_raw} {cpu:8.1f} {wire:5.2f} {late:5.1%}"
    return f"{start} {figures}  {outcome.problem}".rstrip()


def plot(outcomes: list[Outcome], path: Path, subtitle: str) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    profiles = list(dict.fromkeys(outcome.profile for outcome in outcomes))
    contenders = [name for name in CONTENDERS if any(outcome.contender == name for outcome in outcomes)]
    figure, axes = plt.subplots(1, len(profiles), figsize=(1.2 + 2.6 * len(profiles), 4), squeeze=False, layout="constrained")
    for axis, profile in zip(axes[0], profiles, strict=True):
        shown = {outcome.contender: outcome for outcome in outcomes if outcome.profile == profile and outcome.rounds}
        for position, contender in enumerate(contenders):
            if contender in shown:
                color = {"ours": "tab:blue", "raw": "lightgray"}.get(contender, "tab:gray")
                axis.bar_label(axis.bar(position, shown[contender].mbit_per_peer, color=color), fmt="%.3g")
            else:
                axis.text(position, 0, "none", ha="center", va="bottom")
        axis.set_xticks(range(len(contenders)), contenders)
        axis.set_title(PROFILES[profile].title.replace(", ", "\n", 1), fontsize=9)
    axes[0][0].set_ylabel("Mbit/s that a peer sends")
    figure.suptitle(subtitle, fontsize=10)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory for averaging.json, averaging.png and the logs")
    parser.add_argument("--profiles", nargs="+", default=list(PROFILES), choices=list(PROFILES))
    parser.add_argument("--contenders", nargs="+", default=list(COMPARED), choices=list(CONTENDERS))
    parser.add_argument("--millions", type=float, default=5.0, help="float32 values of the vector, in millions")
    parser.add_argument(
        "--codec",
        default="float32",
        choices=[codec.name for codec in CODECS],
        help=f"what the values are on the wire; only ours have others than {' and '.join(DTYPES)}",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--congestion-control", default="cubic", choices=get_args(CongestionControl))
    parser.add_argument("--profile-seconds", type=float, default=120.0, help="for a profile, shared by its contenders")
    parser.add_argument("--seed", type=int, default=1, help="which packets are lost")
    args = parser.parse_args()
    if args.codec not in DTYPES and {"raw", "gloo", "hivemind"} & set(args.contenders):
        parser.error(f"--codec {args.codec}: only ours has it; give --contenders of ours, robust and recheck")
    end_on_sigterm()
    args.out.mkdir(parents=True, exist_ok=True)
    settings = (
        f"{args.millions:g}M {args.codec}, {args.congestion_control}, at most {args.rounds} rounds, {os.cpu_count()} cores"
    )
    print(f"{settings}\n{HEAD}", flush=True)
    outcomes: list[Outcome] = []
    for profile in args.profiles:
        raw = None
        # The limit comes first: the others are shown beside it.
        for contender in sorted(args.contenders, key=list(CONTENDERS).index):
            outcome = measure(args, profile, contender, args.profile_seconds / len(args.contenders))
            raw = outcome if contender == "raw" else raw
            outcomes.append(outcome)
            print(row(outcome, raw), flush=True)
    document = {"settings": settings, "seed": args.seed, "outcomes": [asdict(outcome) for outcome in outcomes]}
    (args.out / "averaging.json").write_text(json.dumps(document, indent=1) + "\n")
    plot(outcomes, args.out / "averaging.png", settings)


if __name__ == "__main__":
    main()
