"""How fast is averaging on loopback: ours, hivemind's own averager and gloo, in the same run on the same machine.

    python -m benchmarks.averaging_loopback [--millions 10] [--peers 2 4] [--rounds 3]

Every peer is a process of its own. Seconds are the slowest peer's, from a common start, without matchmaking or dialing; the
median over the rounds after one that warms up. `cpu` is the processor time of all processes of all peers in one round,
network daemons included. Hivemind's and our streams are encrypted, gloo's are not.

`wire` is what the loopback interface carried, over the 2 (n - 1) S bytes that any butterfly needs for a vector of S encoded
bytes: headers, encryption and acknowledgements make it more than one, other traffic of the machine too. `peer` is what the
peer with most of it sent or received, whichever is more, over its part of them, 2 (n - 1) / n S: counted by our streams where
bytes are written and read, frames, hellos and answers included. Only ours has int8. `ours` is the plain mean; `robust` is the
same with that aggregation rule, which sees all contributions before it decides. `recheck` and `recheck 1` are the mean, and
then the parts that members make again, at the rates 0.05, the default of runs, and 1.0; in a run that goes on beside training.
"""

import argparse
import asyncio
import multiprocessing as mp
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import psutil
import torch

from adloco_p2p.numerics.codecs import codec_named
from benchmarks.averaging_peer import BenchmarkIdentity, begin_averager
from benchmarks.nodes import end_on_sigterm
from benchmarks.unplanned import unplanned

CASE_SECONDS = 120.0
"""A set of processes that takes longer is ended."""
SILENT: tuple[str, Any] = ("silent", None)
MATCHMAKING_SECONDS = 3.5
"""Of hivemind's averager."""
DTYPES = {"float32": torch.float32, "float16": torch.float16}
"""The types that all of them can send."""
CODECS = (*DTYPES, "int8")

Round = Callable[[], object]
Figures = tuple[float, float, float, float]
"""Seconds, processor seconds, bytes on the interface, and bytes that the peer counted; none are 0."""


def cpu_seconds() -> float:
    """Of this process and all it has started."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def loopback_bytes() -> int:
    return psutil.net_io_counters(pernic=True)["lo"].bytes_sent


# --- the three ways; each yields a function that does one round ---------------------------------------------------------


@contextmanager
def ours(
    rank: int,
    _num_peers: int,
    size: int,
    codec: str,
    share: Callable[[Any], list[Any]],
    *,
    rule: str = "mean",
    recheck: float = 0.0,
) -> Iterator[Round]:
    from adloco_p2p.core.model import canonical
    from adloco_p2p.core.model.scalars import PeerId
    from adloco_p2p.swarm.transport.traffic import Meter

    vector, meter = torch.randn(size, generator=torch.Generator().manual_seed(rank)), Meter()
    identity = BenchmarkIdentity()
    with asyncio.Runner() as runner:
        beginning = begin_averager(identity, meter=meter, codec=codec, aggregation=rule, recheck=recheck)
        p2p, averager = runner.run(beginning)
        addresses = share([str(address) for address in runner.run(p2p.get_visible_maddrs())])
        runner.run(dial(p2p, [address for peer in addresses for address in peer]))
        weights = tuple((PeerId(peer), 1 + index) for index, peer in enumerate(share(p2p.peer_id.to_base58())))
        count = 0

        async def average() -> None:
            nonlocal count
            count += 1
            key = canonical.digest(f"{codec} {count}")
            await averager.average(unplanned(key=key, weights=weights, timeout_seconds=60, round=count), vector)
            await averager.settled()  # the loop must go on until the slower ones have their result
            if recheck:
                await asyncio.to_thread(share, None)  # and until all have what they make parts again from
            averager.forget(key)

        def one() -> None:
            runner.run(average())

        one.meter = meter  # type: ignore[attr-defined]
        yield one
        share(None)
        runner.run(averager.stop())
        runner.run(p2p.shutdown())


async def dial(p2p: Any, addresses: list[str]) -> None:
    from hivemind.p2p import PeerID
    from hivemind.utils.multiaddr import Multiaddr

    for address in addresses:
        where, _, peer = address.rpartition("/p2p/")
        if peer != p2p.peer_id.to_base58():
            await p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(where)])


@contextmanager
def stock(rank: int, num_peers: int, size: int, codec: str, share: Callable[[Any], list[Any]]) -> Iterator[Round]:
    import hivemind

    dht = hivemind.DHT(start=True) if rank == 0 else None
    (first, *_) = share([str(address) for address in dht.get_visible_maddrs()] if dht else None)
    dht = dht or hivemind.DHT(initial_peers=first, start=True)
    tensors = [torch.randn(piece, generator=torch.Generator().manual_seed(rank)) for piece in split(size, 10)]
    averager = hivemind_averager(dht, tensors, codec=codec, num_peers=num_peers)
    controls: list[Any] = []

    def one() -> None:
        control = controls.pop()
        control.allow_allreduce()
        assert len(control.result(timeout=60)) == num_peers

    one.prepare = lambda: controls.append(matched(averager, timeout_seconds=30))  # type: ignore[attr-defined]
    yield one
    share(None)
    averager.shutdown()
    dht.shutdown()


def hivemind_averager(dht: Any, tensors: list[torch.Tensor], *, codec: str, num_peers: int, **settings: Any) -> Any:
    import hivemind
    from hivemind.compression import Float16Compression, NoCompression

    return hivemind.DecentralizedAverager(
        tensors,
        dht,
        prefix=f"bench_{codec}",
        target_group_size=num_peers,
        min_group_size=num_peers,
        min_matchmaking_time=MATCHMAKING_SECONDS,
        part_size_bytes=1 << 20,
        compression=Float16Compression() if codec == "float16" else NoCompression(),
        start=True,
        **settings,
    )


def matched(averager: Any, *, timeout_seconds: float) -> Any:
    """The control of a round whose members have found each other: it waits for the trigger."""
    from hivemind.averaging.control import AveragingStage
    from hivemind.utils import get_dht_time

    when = get_dht_time() + MATCHMAKING_SECONDS + 0.5
    control = averager.step(wait=False, require_trigger=True, timeout=timeout_seconds, scheduled_time=when)
    while control.stage != AveragingStage.AWAITING_TRIGGER and not control.done():
        time.sleep(0.01)
    return control


@contextmanager
def gloo(rank: int, num_peers: int, size: int, codec: str, share: Callable[[Any], list[Any]]) -> Iterator[Round]:
    import torch.distributed as dist

    (path, *_) = share(tempfile.mkdtemp() if rank == 0 else None)
    dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=num_peers)
    vector = torch.randn(size, generator=torch.Generator().manual_seed(rank)).to(DTYPES[codec])

    def one() -> None:
        dist.all_reduce(vector)
        vector.div_(num_peers)

    yield one
    share(None)
    dist.destroy_process_group()


def split(size: int, pieces: int) -> list[int]:
    return [size * (piece + 1) // pieces - size * piece // pieces for piece in range(pieces)]


WAYS: dict[str, Callable[..., AbstractContextManager[Any]]] = {
    "hivemind": stock,
    "gloo": gloo,
    "ours": ours,
    "robust": partial(ours, rule="robust"),
    "recheck": partial(ours, recheck=0.05),
    "recheck 1": partial(ours, recheck=1.0),
}  # the first forks, so it must come before anything has threads


# --- one peer -----------------------------------------------------------------------------------------------------------


def peer(rank: int, args: argparse.Namespace, num_peers: int, barrier: Barrier, pipe: Connection) -> None:
    os.setsid()  # so that everything started here can be ended together
    torch.set_num_threads(1)
    mp.set_start_method("fork", force=True)  # hivemind's averager works with no other
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    def share(value: Any) -> list[Any]:
        """Everybody's value, in order."""
        pipe.send(("share", value))
        return pipe.recv()

    for codec in args.codecs:
        for way in ways_for(codec, args.ways):
            with WAYS[way](rank, num_peers, args.millions * 1_000_000, codec, share) as one:
                prepare = getattr(one, "prepare", lambda: None)
                meter = getattr(one, "meter", None)
                for index in range(args.rounds + 1):
                    prepare()
                    barrier.wait(CASE_SECONDS)
                    counted = replace(meter) if meter else None
                    cpu, wire, begun = cpu_seconds(), loopback_bytes(), time.monotonic()
                    barrier.wait(CASE_SECONDS)
                    one()
                    seconds = time.monotonic() - begun
                    barrier.wait(CASE_SECONDS)
                    figures = (seconds, cpu_seconds() - cpu, loopback_bytes() - wire, counted_bytes(counted, meter))
                    pipe.send(("round", (codec, way, index, figures)))
    pipe.send(("end", None))


def ways_for(codec: str, ways: Sequence[str]) -> list[str]:
    return [way for way in ways if WAYS[way] not in (stock, gloo) or codec in DTYPES]


def counted_bytes(before: Any, after: Any) -> float:
    """Sent or received between two states of a meter, whichever is more."""
    if before is None:
        return 0.0
    return float(max(after.sent_bytes - before.sent_bytes, after.received_bytes - before.received_bytes))


# --- all of them --------------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace, num_peers: int) -> dict[tuple[str, str], list[Figures]]:
    """Of every measured round, by codec and way."""
    context = mp.get_context("spawn")
    barrier = context.Barrier(num_peers)
    pipes = [context.Pipe() for _ in range(num_peers)]
    processes = [
        context.Process(target=peer, args=(rank, args, num_peers, barrier, far)) for rank, (_, far) in enumerate(pipes)
    ]
    rounds: dict[tuple[str, str], list[Figures]] = {}
    try:
        for process, (_, far) in zip(processes, pipes, strict=True):
            process.start()
            far.close()  # so that a peer that dies is noticed
        while True:
            said = [near.recv() if near.poll(CASE_SECONDS) else SILENT for near, _ in pipes]
            (what, *_) = {kind for kind, _ in said}
            if what == "share":
                for near, _ in pipes:
                    near.send([value for _, value in said])
            elif what == "round":
                codec, way, index, _ = said[0][1]
                seconds, cpu, wire, counted = zip(*(value[3] for _, value in said), strict=True)
                if index > 0:
                    rounds.setdefault((codec, way), []).append((max(seconds), sum(cpu), max(wire), max(counted)))
            else:
                return rounds
    except (EOFError, ConnectionResetError):
        print(f"a peer of {num_peers} has died; the figures are incomplete")
        return rounds
    finally:
        for process in processes:
            if process.pid is not None and process.is_alive():
                process.join(2)
            if process.pid is not None:
                end_session(process.pid)
                process.join()


def end_session(leader: int) -> None:
    """End what a peer has left behind."""
    for process in psutil.process_iter(["pid"]):
        try:
            if os.getsid(process.pid) == leader:
                os.kill(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, default=10, help="parameters, in millions")
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codecs", nargs="+", default=["float32", "float16", "int8"], choices=CODECS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    args = parser.parse_args()
    end_on_sigterm()
    print(f"{args.millions}M parameters, {os.cpu_count()} cores, median of {args.rounds} rounds")
    print(f"{'codec':8} {'n':>2} {'way':9} {'seconds':>8} {'MB/s':>6} {'cpu s':>6} {'cpu s/GB':>8} {'wire':>5} {'peer':>6}")
    for num_peers in args.peers:
        for (codec, way), rounds in sorted(measure(args, num_peers).items()):
            seconds, cpu, wire, counted = (statistics.median(column) for column in zip(*rounds, strict=True))
            least = 2 * (num_peers - 1) * codec_named(codec).num_bytes(args.millions * 1_000_000)
            speed = least / num_peers / seconds / 1e6
            row = f"{codec:8} {num_peers:2} {way:9} {seconds:8.2f} {speed:6.0f} {cpu:6.1f} {cpu / least * 1e9:8.1f}"
            told = f"{counted / least * num_peers:6.3f}" if counted else ""
            print(f"{row} {wire / least:5.2f} {told}", flush=True)


if __name__ == "__main__":
    main()
