"""The cost of a large instance beside its vector: one average among many hosts, each a real process on loopback.

    python -m benchmarks.large_instance --out DIRECTORY [--peers 8 16 36] [--thousands 250] [--codec float16] [--rule robust]
                                        [--rounds 3] [--done 0.5] [--seconds 300]

All processes are started once; the first N of them average, the others wait. Then, among the most, one host gets a kill -9
when it has sent the part `--done` of what it sends in a whole average; the others average again without it, as nodes do.
Seconds are the slowest host's, on loopback those of the processor; `cpu` is that of all processes, network daemons included.
`MB` is what the host that sends most sends, counted where our streams are written, and `vector` the part of it that is the
contribution and the averaged parts, 2 (n - 1) / n of the encoded vector; the rest, commitments, inner products, receipts and
frames, depends on the number of hosts alone. `open` is how many files the process of a host has more than before, one per
stream.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from adloco_p2p.core.averaging.attempt import GRACE_SECONDS
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.averages import LostShare
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import AveragingError
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.swarm.transport.traffic import Meter
from benchmarks.averaging_peer import BenchmarkIdentity, begin_averager
from benchmarks.barrier import DirectedPeers, Director, PeerFailed
from benchmarks.contenders import PART_BYTES, cpu_seconds, dial_lower_ranks
from benchmarks.nodes import LOOPBACK, end_on_sigterm
from benchmarks.unplanned import unplanned

LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of the measurement, the same for all processes."""

    sizes: tuple[int, ...]
    """Hosts of each average, ascending."""
    values: int
    codec: str
    rule: str
    rounds: int
    """Averages of each size."""
    done: float
    seconds: float

    @property
    def victim(self) -> int:
        return self.sizes[-1] // 2


# --- a host ---------------------------------------------------------------------------------------------------------------


class Host:
    """One process with its daemon and its averager."""

    def __init__(self, rank: int, plan: Plan, runner: asyncio.Runner, director: Director) -> None:
        self._rank, self._plan, self._runner = rank, plan, runner
        self.meter = Meter()
        identity = BenchmarkIdentity()
        settings: dict[str, Any] = {
            "part_bytes": PART_BYTES,
            "codec": plan.codec,
            "aggregation": plan.rule,
            "meter": self.meter,
        }
        p2p, self.averager = runner.run(begin_averager(identity, listen=(LOOPBACK,), **settings))
        self._identity = identity  # the file of the identity lasts as long as this object
        addresses = director.tell("share", [str(address) for address in runner.run(p2p.get_visible_maddrs())])
        runner.run(dial_lower_ranks(p2p, addresses, rank))
        self._names = [PeerId(name) for name in director.tell("share", p2p.peer_id.to_base58())]
        common, own = (torch.Generator().manual_seed(seed) for seed in (0, rank + 1))
        self._vector = torch.randn(plan.values, generator=common) + torch.randn(plan.values, generator=own)
        self.decisions: list[Digest | None] = [None]

    async def average(self, name: str, members: Sequence[int], **more: Any) -> str:
        """Return the digest of the result."""
        weights = tuple((self._names[member], 1) for member in members)
        asked = unplanned(key=canonical.digest(name), weights=weights, timeout_seconds=self._plan.seconds, **more)
        averaged = await self.averager.average(asked, self._vector, on_decided=self.decisions.append)
        return averaged.finished.digest

    async def die_at(self, sent_bytes: float) -> None:
        """Kill this process and its daemon by -9, once so much has been sent."""
        while self.meter.sent_bytes < sent_bytes:  # noqa: ASYNC110 - a count of bytes, which nobody announces
            await asyncio.sleep(LOOK_SECONDS)
        os.killpg(0, signal.SIGKILL)

    async def disturbed(self, director: Director, whole_bytes: int) -> str:
        """Do the average in which the victim dies, and the one after it."""
        members, victim = range(self._plan.sizes[-1]), self._plan.victim
        if self._rank == victim:
            dying = asyncio.create_task(self.die_at(self.meter.sent_bytes + self._plan.done * whole_bytes))
        self.decisions = [None]
        try:
            digest = await self.average("disturbed", members, round=2)
            if self._rank == victim:
                await dying
        except AveragingError as error:
            print(error, file=sys.stderr)
        else:
            raise AssertionError(f"{digest} was averaged before the kill")
        completes = await asyncio.to_thread(director.tell, "failed", self.decisions[-1])
        await asyncio.sleep(GRACE_SECONDS)
        rest = [member for member in members if member != victim]
        lost = (LostShare(victim, 1.0),)
        return await self.average("again", rest, round=2, attempt=1, lost=lost, completes=completes)


def act(rank: int, plan: Plan) -> None:
    """Run the process of one host."""
    torch.set_num_threads(1)
    director = Director()
    with asyncio.Runner() as runner:
        host = Host(rank, plan, runner, director)
        files, sent_bytes = psutil.Process().num_fds(), 0
        for size in plan.sizes:
            for number in range(plan.rounds):
                director.tell("begin")
                cpu, before, begun = cpu_seconds(), host.meter.sent_bytes, time.monotonic()
                if rank < size:
                    runner.run(host.average(f"{size} {number}", range(size), round=1))
                    seconds = time.monotonic() - begun
                    runner.run(host.averager.settled())
                    sent_bytes = host.meter.sent_bytes - before
                    cost = [seconds, sent_bytes, cpu_seconds() - cpu, psutil.Process().num_fds() - files]
                director.tell("done", cost if rank < size else [0.0, 0, 0.0, 0])
        director.tell("begin")
        cpu, before = cpu_seconds(), host.meter.sent_bytes
        digest = runner.run(host.disturbed(director, sent_bytes))
        director.tell("survived", [digest, host.meter.sent_bytes - before, cpu_seconds() - cpu])
        runner.run(host.averager.settled())
        director.tell("end")


# --- the benchmark --------------------------------------------------------------------------------------------------------


def undisturbed(peers: DirectedPeers, plan: Plan) -> list[dict[str, float]]:
    """Return the cost of the averages of each size: medians over the rounds after the first."""
    rows = []
    print(f"{'hosts':>5}{'seconds':>9}{'MB':>8}{'vector':>8}{'rest kB':>9}{'cpu s':>7}{'open':>6}")
    for size in plan.sizes:
        costs = []
        for _ in range(plan.rounds):
            peers.expect("begin")
            peers.answer(None)
            seconds, sent, cpu, files = zip(*peers.expect("done"), strict=True)
            peers.answer(None)
            costs.append((max(seconds), max(sent), sum(cpu), max(files)))
        seconds, sent, cpu, files = (median(column) for column in zip(*(costs[1:] or costs), strict=True))
        vector = 2 * (size - 1) / size * codec_named(plan.codec).num_bytes(plan.values)
        rows.append({"hosts": size, "seconds": seconds, "sent": sent, "vector": vector, "cpu": cpu, "files": files})
        rest = (sent - vector) / 1e3
        print(f"{size:5}{seconds:9.2f}{sent / 1e6:8.2f}{vector / 1e6:8.2f}{rest:9.1f}{cpu:7.1f}{files:6.0f}", flush=True)
    return rows


def disturbed(peers: DirectedPeers, plan: Plan, victim: subprocess.Popen[bytes]) -> dict[str, float]:
    """Return the cost of the average with a kill."""
    peers.expect("begin")
    begun = time.monotonic()
    peers.answer(None)
    victim.wait(plan.seconds)
    killed = time.monotonic()
    peers.kill(plan.victim)
    decisions = peers.expect("failed")
    noticed = time.monotonic() - killed
    completes = decisions[0] if len(set(decisions)) == 1 else None
    peers.answer(completes)
    digests, sent, cpu = zip(*peers.expect("survived"), strict=True)
    seconds = time.monotonic() - begun
    assert len(set(digests)) == 1, "the survivors have one average"
    peers.answer(None)
    peers.expect("end")
    row = {"seconds": seconds, "killed": killed - begun, "noticed": noticed, "sent": max(sent), "cpu": sum(cpu)}
    way = "completed" if completes else "repeated"
    when = f"after {killed - begun:.2f} s, noticed by all {noticed:.2f} s later"
    print(f"kill -9 of one of {plan.sizes[-1]} {when}, {way} by the rest")
    print(f"     {seconds:9.2f}{max(sent) / 1e6:8.2f}{'':17}{sum(cpu):7.1f}")
    return row


def main() -> None:
    if sys.argv[1:2] == ["--peer"]:
        act(int(sys.argv[2]), Plan(**json.loads(sys.argv[3])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory for large_instance.json and the logs")
    parser.add_argument("--peers", type=int, nargs="+", default=[8, 16, 36])
    parser.add_argument("--thousands", type=int, default=250, help="values of the vector, in thousands")
    parser.add_argument("--codec", default="float16")
    parser.add_argument("--rule", default="robust")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--done", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=300.0, help="for everything")
    args = parser.parse_args()
    end_on_sigterm()
    args.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        sizes=tuple(sorted(args.peers)),
        values=args.thousands * 1000,
        codec=args.codec,
        rule=args.rule,
        rounds=args.rounds,
        done=args.done,
        seconds=args.seconds,
    )
    processes: list[subprocess.Popen[bytes]] = []

    def popen(_host: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen(command, start_new_session=True, **options))
        return processes[-1]

    peers = DirectedPeers(popen, seconds=plan.seconds)
    rows: list[dict[str, float]] = []
    try:
        for rank in range(plan.sizes[-1]):
            told = ("--peer", str(rank), json.dumps(asdict(plan)))
            peers.begin("", "benchmarks.large_instance", *told, log=args.out / f"{rank}.txt")
        for _ in range(2):
            peers.share("share")
        rows += undisturbed(peers, plan)
        rows.append(disturbed(peers, plan, processes[plan.victim]))
    except PeerFailed as error:
        sys.exit(str(error))
    finally:
        (args.out / "large_instance.json").write_text(json.dumps({"plan": asdict(plan), "rows": rows}, indent=1) + "\n")
        for process in processes:
            end_group(process)


def end_group(leader: subprocess.Popen[bytes]) -> None:
    """End a host and its daemon, which are one process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


if __name__ == "__main__":
    main()
