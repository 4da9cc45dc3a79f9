"""One peer of one contender, started by `averaging_loopback.py` or `wan/averaging.py`, to which it reports its progress line by
line.

Every contender is a context manager that yields a function for one round, and whatever has to be done before each. A vector
is full of the peer's rank plus one, so that every peer can compute the right mean, on the first round and on all later ones.
With a codec that loses something it is noise of the peer's own, so that sparse vectors name places of their own, and all peers
only compare what they got.
"""

import asyncio
import contextlib
import json
import multiprocessing as mp
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch

from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.numerics.digest import tensor_digest
from benchmarks.averaging_peer import BenchmarkIdentity, begin_averager
from benchmarks.barrier import DirectedPeers, Director
from benchmarks.unplanned import unplanned

DTYPES = {"float32": torch.float32, "float16": torch.float16}
"""The types that every contender can send."""
RAW_PORT = 7201
CHUNK_BYTES = 1 << 17
PART_BYTES = 1 << 20
ROUND_SECONDS = 120.0
"""No contender gives up before the benchmark does."""
REDIAL_SECONDS = 1.0
MATCHMAKING_SECONDS = 3.5
"""The matchmaking time of hivemind's averager."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The order of a benchmark to a peer, as JSON in its first argument."""

    contender: str
    rank: int
    addresses: list[str]
    """The addresses of all peers, by rank."""
    size: int
    """The float32 values of the vector."""
    codec: str
    """The type on the wire; gloo averages, and plain sockets send, values of this type."""
    rounds: int
    shares: list[float]
    """How much of the vector each peer reduces; the shares add up to 1."""
    up_mbit: float = 1000.0
    gloo_port: int = 7202
    interface: str = "link0"

    @property
    def num_peers(self) -> int:
        return len(self.addresses)

    @property
    def address(self) -> str:
        return self.addresses[self.rank]

    @property
    def listen(self) -> list[str]:
        return [f"/ip4/{self.address}/tcp/0"]

    def vector(self) -> torch.Tensor:
        if self.codec in DTYPES:
            return torch.full((self.size,), self.rank + 1.0)
        return torch.randn(self.size, generator=torch.Generator().manual_seed(self.rank))

    def check(self, *tensors: torch.Tensor, rule: str = "mean") -> None:
        """Check that the tensors are the average of all peers' vectors by this aggregation rule."""
        short = [torch.full((1,), rank + 1.0) for rank in range(self.num_peers)]
        ones = [1] * self.num_peers
        average = aggregate(short, ones, ones, rule=rule_named(rule), codec=codec_named("float32")).vector
        assert all(torch.allclose(tensor.float(), average) for tensor in tensors), f"this is not the average by rule {rule}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    prepare: Callable[[], None] = lambda: None
    average: Callable[[], float]
    """Returns the seconds until the result was here, once nobody needs this peer any more."""
    check: Callable[[], None] = lambda: None
    traffic: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Returns the bytes sent and received so far, where the contender counts them."""


def cpu_seconds() -> float:
    """Return the processor time of this process and all its children."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(each.user + each.system for each in times)


# --- ours ---------------------------------------------------------------------------------------------------------------


@contextmanager
def ours(task: Task, director: Director, *, rule: str = "mean", recheck: float = 0.0) -> Iterator[Ways]:
    from adloco_p2p.core.model import canonical
    from adloco_p2p.core.model.scalars import PeerId
    from adloco_p2p.swarm.transport.traffic import Meter

    identity, meter = BenchmarkIdentity(), Meter()
    settings = {"part_bytes": PART_BYTES, "codec": task.codec, "aggregation": rule, "recheck": recheck}
    with asyncio.Runner() as runner:
        p2p, averager = runner.run(begin_averager(identity, listen=task.listen, meter=meter, **settings))
        addresses = director.tell("share", [str(address) for address in runner.run(p2p.get_visible_maddrs())])
        runner.run(dial_lower_ranks(p2p, addresses, task.rank))
        weights = tuple((PeerId(peer), 1) for peer in director.tell("share", p2p.peer_id.to_base58()))
        vector = task.vector()
        out, count = torch.empty(0), 0

        async def average() -> float:
            nonlocal count, out
            count += 1
            key = canonical.digest(f"round {count}")
            shares = tuple(task.shares)
            asked = unplanned(key=key, weights=weights, shares=shares, timeout_seconds=ROUND_SECONDS, round=count)
            averaged = await averager.average(asked, vector)
            out = averaged.vector
            await averager.settled()  # the loop must go on until the slower ones have their result
            if recheck:
                await asyncio.to_thread(director.tell, "share")  # and until all have what they make parts again from
            averager.forget(key)
            return averaged.seconds

        def check() -> None:
            if task.codec in DTYPES:
                task.check(out, rule=rule)
            else:
                found = director.tell("share", tensor_digest(out))
                assert out.any() and len(set(found)) == 1, "peers have different averages"

        yield Ways(
            average=lambda: runner.run(average()),
            check=check,
            traffic=lambda: (meter.sent_bytes, meter.received_bytes),
        )
        runner.run(averager.stop())
        runner.run(p2p.shutdown())


async def dial_lower_ranks(p2p: Any, addresses: list[list[str]], rank: int) -> None:
    """Dial the peers of lower rank, so that only one of each pair dials. Daemons that dial each other at the same instant, from
    the ports on which they listen, share one TCP connection on which both begin the handshake; both fail, and refuse to dial
    again for some seconds. Hivemind's DHT, which all peers join at once, does just that; then the only way is to try until it
    works."""
    from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure

    for peer in addresses[:rank]:
        while True:
            try:
                await dial(p2p, peer)
            except ControlFailure as error:
                print(error, file=sys.stderr)
                await asyncio.sleep(REDIAL_SECONDS)
            else:
                break


async def dial(p2p: Any, addresses: list[str]) -> None:
    from hivemind.p2p import PeerID
    from hivemind.utils.multiaddr import Multiaddr

    for address in addresses:
        where, _, peer = address.rpartition("/p2p/")
        if peer != p2p.peer_id.to_base58():
            await p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(where)])


# --- the others -----------------------------------------------------------------------------------------------------------


@contextmanager
def stock(task: Task, director: Director) -> Iterator[Ways]:
    import hivemind
    from hivemind.averaging.control import AveragingStage
    from hivemind.compression import Float16Compression, NoCompression
    from hivemind.utils import get_dht_time

    dht = hivemind.DHT(host_maddrs=task.listen, start=True) if task.rank == 0 else None
    (first, *_) = director.tell("share", [str(address) for address in dht.get_visible_maddrs()] if dht else None)
    dht = dht or hivemind.DHT(initial_peers=first, host_maddrs=task.listen, start=True)
    addresses = director.tell("share", [str(address) for address in dht.get_visible_maddrs()])

    async def connect(dht: Any) -> None:
        p2p = await dht.replicate_p2p()
        await dial_lower_ranks(p2p, addresses, task.rank)
        await p2p.shutdown()

    asyncio.run(connect(dht))
    averager = hivemind.DecentralizedAverager(
        [torch.full((len(piece),), task.rank + 1.0) for piece in torch.empty(task.size).chunk(10)],
        dht,
        prefix=f"bench_{task.codec}",
        target_group_size=task.num_peers,
        min_group_size=task.num_peers,
        min_matchmaking_time=MATCHMAKING_SECONDS,
        part_size_bytes=PART_BYTES,
        compression=Float16Compression() if task.codec == "float16" else NoCompression(),
        bandwidth=task.up_mbit,
        sender_timeout=ROUND_SECONDS,
        reducer_timeout=2 * ROUND_SECONDS,
        start=True,
    )
    controls: list[Any] = []

    def prepare() -> None:
        """Let the members find each other; the round then waits for its trigger."""
        when = get_dht_time() + MATCHMAKING_SECONDS + 0.5
        control = averager.step(wait=False, require_trigger=True, timeout=ROUND_SECONDS, scheduled_time=when)
        while control.stage != AveragingStage.AWAITING_TRIGGER and not control.done():
            time.sleep(0.01)
        controls.append(control)

    def average() -> float:
        begun, control = time.monotonic(), controls.pop()
        control.allow_allreduce()
        assert len(control.result(timeout=ROUND_SECONDS)) == task.num_peers
        return time.monotonic() - begun

    def check() -> None:
        with averager.get_tensors() as tensors:
            task.check(*tensors)

    yield Ways(prepare=prepare, average=average, check=check)
    averager.shutdown()
    dht.shutdown()


@contextmanager
def gloo(task: Task, director: Director) -> Iterator[Ways]:  # noqa: ARG001
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = task.interface
    where = f"tcp://{task.addresses[0]}:{task.gloo_port}"
    dist.init_process_group("gloo", init_method=where, rank=task.rank, world_size=task.num_peers)
    vector = task.vector().to(DTYPES[task.codec])

    def average() -> float:
        begun = time.monotonic()
        dist.all_reduce(vector)
        vector.div_(task.num_peers)
        return time.monotonic() - begun

    yield Ways(average=average, check=lambda: task.check(vector))
    dist.destroy_process_group()


@contextmanager
def raw(task: Task, director: Director) -> Iterator[Ways]:
    """Send the bytes of a butterfly with these shares over plain sockets, all at once, without computing or waiting."""

    def due(source: int, target: int) -> int:
        """Return the bytes of the part that the target reduces, and of the result that the source has reduced."""
        return round(DTYPES[task.codec].itemsize * task.size * (task.shares[source] + task.shares[target]))

    data = bytes(CHUNK_BYTES)
    others = [rank for rank in range(task.num_peers) if rank != task.rank]
    incoming: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as undo:
        server = undo.enter_context(socket.create_server((task.address, RAW_PORT), backlog=task.num_peers))
        director.tell("share")
        outgoing = {rank: socket.create_connection((task.addresses[rank], RAW_PORT)) for rank in others}
        for _ in others:
            connection, (address, _) = server.accept()
            incoming[task.addresses.index(address)] = connection
        for connection in (*outgoing.values(), *incoming.values()):
            undo.enter_context(connection)

        def send(rank: int) -> None:
            left = due(task.rank, rank)
            while left:
                left -= outgoing[rank].send(data[:left] if left < len(data) else data)

        def receive(rank: int) -> None:
            left, room = due(rank, task.rank), memoryview(bytearray(CHUNK_BYTES))
            while left:
                got = incoming[rank].recv_into(room[: min(left, len(room))])
                if not got:
                    raise ConnectionError(f"peer {rank} has closed its connection")
                left -= got

        def average() -> float:
            begun = time.monotonic()
            threads = [threading.Thread(target=work, args=(rank,)) for work in (send, receive) for rank in others]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return time.monotonic() - begun

        yield Ways(average=average)


CONTENDERS: dict[str, Callable[[Task, Director], AbstractContextManager[Ways]]] = {
    "raw": raw,
    "gloo": gloo,
    "hivemind": stock,
    "ours": ours,
    "robust": partial(ours, rule="robust"),
    "recheck": partial(ours, recheck=0.05),
    "recheck 1": partial(ours, recheck=1.0),
    "robust recheck": partial(ours, rule="robust", recheck=0.05),
}


# --- a peer, and its benchmark ----------------------------------------------------------------------------------------------


def rounds_of(peers: DirectedPeers, count: Callable[[], Any]) -> Iterator[tuple[list[dict[str, float]], Any, Any]]:
    """Answer the peers' messages until all have ended. Yields for every round what each peer tells, and `count()` before and
    after it. Raises PeerFailed."""
    before = after = None
    while True:
        kind, values = peers.hear()
        match kind:
            case "begin":
                before = count()
            case "done":
                after = count()
            case "round":
                yield values, before, after
        peers.answer(values)
        if kind == "end":
            return


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    director = Director()
    torch.set_num_threads(1)
    mp.set_start_method("fork", force=True)  # hivemind's averager works with no other
    with CONTENDERS[task.contender](task, director) as ways:
        for _ in range(task.rounds):
            director.tell("prepare")
            ways.prepare()
            cpu, (sent, received) = cpu_seconds(), ways.traffic()
            director.tell("begin")
            begun = time.monotonic()
            seconds = ways.average()
            whole_seconds = time.monotonic() - begun
            director.tell("done")
            sent, received = ways.traffic()[0] - sent, ways.traffic()[1] - received
            figures = {"seconds": seconds, "whole_seconds": whole_seconds, "cpu_seconds": cpu_seconds() - cpu}
            director.tell("round", {**figures, "counted_bytes": max(sent, received)})
            ways.check()
        director.tell("end")


if __name__ == "__main__":
    main()
