"""One peer of one contender, in its namespace: started by `averaging.py`, to which it reports its progress, a line at a time.

Every contender is a context manager that yields a function for one round, and whatever has to be done before each. A vector
is full of the peer's rank plus one, so that every peer can compute the right mean, on the first round and on all later ones.
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

import torch

from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.swarm.transport.endpoint import Endpoint
from benchmarks.averaging_loopback import DTYPES, cpu_seconds, dial, split
from benchmarks.signing import BenchmarkIdentity
from benchmarks.unplanned import unplanned

INTERFACE = "link0"
RAW_PORT, GLOO_PORT = 7201, 7202
CHUNK_BYTES = 1 << 17
PART_BYTES = 1 << 20
ROUND_SECONDS = 120.0
"""No contender gives up before the benchmark itself does."""
MATCHMAKING_SECONDS = 3.5
REDIAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The order of `averaging.py` to a peer, as JSON in its first argument."""

    contender: str
    rank: int
    addresses: list[str]
    """Of all peers, by rank."""
    size: int
    """float32 values of the vector."""
    codec: str
    """The type on the wire; gloo averages, and plain sockets send, values of this type."""
    rounds: int
    shares: list[float]
    """How much of the vector each peer reduces; they add up to 1."""
    up_mbit: float

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
        return torch.full((self.size,), self.rank + 1.0)

    def check(self, *tensors: torch.Tensor, rule: str = "mean") -> None:
        """`rule`: what the average of all peers' vectors is by this aggregation rule."""
        short = [torch.full((1,), rank + 1.0) for rank in range(self.num_peers)]
        ones = [1] * self.num_peers
        average = aggregate(short, ones, ones, rule=rule_named(rule), codec=codec_named("float32")).vector
        assert all(torch.allclose(tensor.float(), average) for tensor in tensors), f"this is not the average by rule {rule}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    prepare: Callable[[], None] = lambda: None
    average: Callable[[], float]
    """Seconds until the result was here; returns when nobody needs this peer any more."""
    check: Callable[[], None] = lambda: None


class Director:
    """The benchmark at the other end of our pipes."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # libraries print to standard output as they like

    def tell(self, kind: str, value: Any = None) -> Any:
        """Wait until all peers have sent the same kind of message; everybody's values, by rank."""
        self._out.write(json.dumps({"kind": kind, "value": value}) + "\n")
        line = sys.stdin.readline()
        if not line:
            sys.exit("the benchmark has ended")
        return json.loads(line)


@contextmanager
def ours(task: Task, director: Director, *, rule: str = "mean") -> Iterator[Ways]:
    from hivemind.p2p import P2P

    from adloco_p2p.core.model import canonical
    from adloco_p2p.core.model.scalars import PeerId
    from adloco_p2p.swarm.allreduce.averager import Averager

    identity = BenchmarkIdentity()
    with asyncio.Runner() as runner:

        async def start() -> tuple[P2P, Averager]:
            p2p = await P2P.create(host_maddrs=task.listen, identity_path=identity.path)
            averager = Averager(Endpoint(p2p), part_bytes=PART_BYTES, codec=task.codec, aggregation=rule, **identity.signing)
            await averager.start()
            return p2p, averager

        p2p, averager = runner.run(start())
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
            averaged = await averager.average(
                unplanned(key=key, weights=weights, shares=shares, timeout_seconds=ROUND_SECONDS), vector
            )
            out = averaged.vector
            await averager.settled()  # the loop must go on until the slower ones have their result
            averager.forget(key)
            return averaged.seconds

        yield Ways(average=lambda: runner.run(average()), check=lambda: task.check(out, rule=rule))
        runner.run(averager.stop())
        runner.run(p2p.shutdown())


async def dial_lower_ranks(p2p: Any, addresses: list[list[str]], rank: int) -> None:
    """One of each two dials: daemons that dial each other at the same instant, from the ports they listen on, end up with one
    TCP connection on which both begin the handshake; both fail, and refuse to dial again for some seconds. Hivemind's DHT,
    joined by all peers at once, does just that; then there is nothing to do but to try until it works."""
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
        [torch.full((piece,), task.rank + 1.0) for piece in split(task.size, 10)],
        dht,
        prefix="wan",
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

    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    where = f"tcp://{task.addresses[0]}:{GLOO_PORT}"
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
    """The bytes of a butterfly with these shares, over plain sockets, all at once: nothing is computed or waited for."""

    def due(source: int, target: int) -> int:
        """Bytes: the part that the target reduces, and the result of what the source has reduced."""
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
}


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    director = Director()
    torch.set_num_threads(1)
    mp.set_start_method("fork", force=True)  # hivemind's averager works with no other
    with CONTENDERS[task.contender](task, director) as ways:
        for _ in range(task.rounds):
            director.tell("prepare")
            ways.prepare()
            cpu = cpu_seconds()
            director.tell("begin")
            seconds = ways.average()
            director.tell("done")
            director.tell("round", {"seconds": seconds, "cpu_seconds": cpu_seconds() - cpu})
            ways.check()
        director.tell("end")


if __name__ == "__main__":
    main()
