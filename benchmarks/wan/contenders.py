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
from benchmarks.averaging_loopback import DTYPES, cpu_seconds, dial, hivemind_averager, matched, split
from benchmarks.averaging_peer import BenchmarkIdentity, begin_averager
from benchmarks.unplanned import unplanned
from benchmarks.wan.barrier import Director

INTERFACE = "link0"
RAW_PORT, GLOO_PORT = 7201, 7202
CHUNK_BYTES = 1 << 17
PART_BYTES = 1 << 20
ROUND_SECONDS = 120.0
"""No contender gives up before the benchmark itself does."""
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


@contextmanager
def ours(task: Task, director: Director, *, rule: str = "mean") -> Iterator[Ways]:
    from adloco_p2p.core.model import canonical
    from adloco_p2p.core.model.scalars import PeerId

    identity = BenchmarkIdentity()
    with asyncio.Runner() as runner:
        p2p, averager = runner.run(
            begin_averager(identity, listen=task.listen, part_bytes=PART_BYTES, codec=task.codec, aggregation=rule)
        )
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

    dht = hivemind.DHT(host_maddrs=task.listen, start=True) if task.rank == 0 else None
    (first, *_) = director.tell("share", [str(address) for address in dht.get_visible_maddrs()] if dht else None)
    dht = dht or hivemind.DHT(initial_peers=first, host_maddrs=task.listen, start=True)
    addresses = director.tell("share", [str(address) for address in dht.get_visible_maddrs()])

    async def connect(dht: Any) -> None:
        p2p = await dht.replicate_p2p()
        await dial_lower_ranks(p2p, addresses, task.rank)
        await p2p.shutdown()

    asyncio.run(connect(dht))
    averager = hivemind_averager(
        dht,
        [torch.full((piece,), task.rank + 1.0) for piece in split(task.size, 10)],
        codec=task.codec,
        num_peers=task.num_peers,
        bandwidth=task.up_mbit,
        sender_timeout=ROUND_SECONDS,
        reducer_timeout=2 * ROUND_SECONDS,
    )
    controls: list[Any] = []

    def prepare() -> None:
        controls.append(matched(averager, timeout_seconds=ROUND_SECONDS))

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
