"""The cost of an average in which hosts die: bytes and seconds beside an undisturbed one, over emulated links.

    python -m benchmarks.wan.deaths --out DIRECTORY [--peers 8] [--millions 12] [--mbit 25] [--victims 1]
                                    [--done 0.25 0.5 0.75] [--rules robust mean]
                                    [--ways completed held afresh]

Every peer is a process in a namespace of its own. When a share `done` of an undisturbed average's bytes has been sent, the
victims get a kill -9; the others fail, wait `GRACE_SECONDS` as a node does, and average again without them. `completed` is
what the node does: a retry that completes the attempt where all have decided it, and otherwise sends what its reducers do not
hold. `held` never completes one; `afresh` sends everything again. Each case has a laboratory of its
own with the same seed. `bytes` are IP bytes that all hosts sent from the start to the survivors' result, over those of the
undisturbed average; `seconds` the slowest survivor's, over the undisturbed ones; `noticed`: from the kill to the last
survivor's failure. Under load seconds measure the machine; bytes do not.
"""

import argparse
import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from adloco_p2p.core.averaging.attempt import GRACE_SECONDS
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.averages import LostShare
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import AveragingError
from benchmarks.averaging_peer import BenchmarkIdentity, begin_averager
from benchmarks.barrier import DirectedPeers, Director, PeerFailed
from benchmarks.contenders import PART_BYTES, dial_lower_ranks
from benchmarks.unplanned import unplanned
from benchmarks.wan.lab import Laboratory, Link

LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One average, in which peers may die."""

    rule: str
    codec: str
    size: int
    victims: tuple[int, ...] = ()
    done: float = 0.0
    """The part of the bytes of an undisturbed average after which they die."""
    way: str = "completed"
    """The way of the retry."""
    seconds: float
    """The seconds that the case may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    sent_bytes: int
    seconds: float
    noticed_seconds: float = 0.0


# --- a peer ---------------------------------------------------------------------------------------------------------------


def act(rank: int, listen: str, case: Case) -> None:
    """Run one peer's process."""
    torch.set_num_threads(1)
    director, identity = Director(), BenchmarkIdentity()
    with asyncio.Runner() as runner:

        async def average(attempt: int, without: tuple[int, ...], completes: Digest | None) -> str:
            members = [number for number in range(len(names)) if number not in without]
            lost = [LostShare(sum(member < gone for member in members), 1.0) for gone in sorted(without)]
            is_retry = attempt > 0 and case.way != "afresh"
            averaged = await averager.average(
                unplanned(
                    key=canonical.digest(f"attempt {attempt}"),
                    weights=tuple((names[number], 1) for number in members),
                    timeout_seconds=case.seconds,
                    attempt=attempt if is_retry else 0,
                    lost=tuple(lost) if is_retry else (),
                    completes=completes,
                ),
                vector,
                on_decided=decisions.append,
            )
            return averaged.finished.digest

        listen_on = [f"/ip4/{listen}/tcp/0"]
        p2p, averager = runner.run(
            begin_averager(identity, listen=listen_on, part_bytes=PART_BYTES, codec=case.codec, aggregation=case.rule)
        )
        addresses = director.tell("share", [str(address) for address in runner.run(p2p.get_visible_maddrs())])
        runner.run(dial_lower_ranks(p2p, addresses, rank))
        names = [PeerId(name) for name in director.tell("share", p2p.peer_id.to_base58())]
        common, own = (torch.Generator().manual_seed(seed) for seed in (0, rank + 1))
        vector = torch.randn(case.size, generator=common) + torch.randn(case.size, generator=own)
        director.tell("begin")
        decisions: list[Digest | None] = [None]
        try:
            digest = runner.run(average(0, (), None))
        except AveragingError as error:
            print(error, file=sys.stderr)

            async def retry() -> str:
                without, completes = await asyncio.to_thread(director.tell, "failed", decisions[-1])
                await asyncio.sleep(GRACE_SECONDS)
                return await average(1, tuple(without), completes)

            digest = runner.run(retry())
        director.tell("done", digest)
        runner.run(averager.settled())
        director.tell("end")


# --- the laboratory -------------------------------------------------------------------------------------------------------


def measure(case: Case, links: tuple[Link, ...], whole_bytes: int, logs: Path) -> Cost:
    """Return the cost of the case. `whole_bytes`: those of an undisturbed average. Raises LaboratoryUnavailable, PeerFailed."""

    def sent_bytes() -> int:
        return sum(counters.sent_bytes for counters in lab.counters().values())

    with Laboratory(links) as lab:
        peers = DirectedPeers(lab.popen, seconds=case.seconds)
        for rank, host in enumerate(lab.hosts):
            told = ("--peer", str(rank), lab.address(host), json.dumps(asdict(case)))
            peers.begin(host, "benchmarks.wan.deaths", *told, log=logs / f"{case.rule}-{case.done}-{case.way}-{host}.txt")
        for _ in range(2):
            peers.share("share")
        peers.expect("begin")
        before, begun, noticed_seconds = sent_bytes(), time.monotonic(), 0.0
        peers.answer(None)
        if case.victims:
            while sent_bytes() - before < case.done * whole_bytes:
                time.sleep(LOOK_SECONDS)
            killed = time.monotonic()
            for victim in case.victims:
                peers.kill(victim)
            decisions = peers.expect("failed")
            noticed_seconds = time.monotonic() - killed
            is_completed = case.way == "completed" and len(set(decisions)) == 1
            peers.answer((case.victims, decisions[0] if is_completed else None))
        digests = peers.expect("done")
        cost = Cost(sent_bytes=sent_bytes() - before, seconds=time.monotonic() - begun, noticed_seconds=noticed_seconds)
        assert len(set(digests)) == 1, "the survivors have one average"
        peers.answer(None)
        peers.expect("end")
        return cost


def main() -> None:
    if sys.argv[1:2] == ["--peer"]:
        rank, listen, told = sys.argv[2:]
        act(int(rank), listen, Case(**json.loads(told)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory for deaths.json and the logs")
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--millions", type=float, default=12.0, help="values of the vector, in millions")
    parser.add_argument("--codec", default="float16")
    parser.add_argument("--mbit", type=float, default=25.0, help="of every link, each way")
    parser.add_argument("--victims", type=int, default=1)
    parser.add_argument("--done", type=float, nargs="+", default=[0.25, 0.5, 0.75])
    parser.add_argument("--rules", nargs="+", default=["robust", "mean"])
    ways = ["completed", "held", "afresh"]
    parser.add_argument("--ways", nargs="+", default=ways, choices=ways)
    parser.add_argument("--case-seconds", type=float, default=300.0)
    args = parser.parse_args()
    logs = args.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    links = tuple(Link(name=f"h{rank}", up_mbit=args.mbit, down_mbit=args.mbit, delay_ms=12.5) for rank in range(args.peers))
    base = {"codec": args.codec, "size": round(args.millions * 1e6), "seconds": args.case_seconds}
    rows = []
    try:
        for rule in args.rules:
            whole = measure(Case(rule=rule, **base), links, 0, logs)
            print(f"{rule:8} undisturbed: {whole.sent_bytes / 1e6:.1f} MB, {whole.seconds:.1f} s", flush=True)
            rows.append({"rule": rule, **asdict(whole)})
            for done in args.done:
                for way in args.ways:
                    victims = tuple(range(1, 1 + args.victims))
                    case = Case(rule=rule, victims=victims, done=done, way=way, **base)
                    cost = measure(case, links, whole.sent_bytes, logs)
                    rows.append({"rule": rule, "done": done, "way": way, **asdict(cost)})
                    ratios = f"bytes {cost.sent_bytes / whole.sent_bytes:.2f}  seconds {cost.seconds / whole.seconds:.2f}"
                    print(f"{rule:8} {done:.0%} {way:9}  {ratios}  noticed {cost.noticed_seconds:.1f} s", flush=True)
    except PeerFailed as error:
        sys.exit(str(error))
    document = {"settings": {key: str(value) for key, value in vars(args).items() if key != "out"}, "rows": rows}
    (args.out / "deaths.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
