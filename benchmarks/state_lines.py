"""The seconds and bytes in which a joiner gets a state from donors behind lines of given rates, in virtual time.

    python -m benchmarks.state_lines [--out FILE]

The fetcher, the servers and their frames are those of the product; the bytes pass through lines instead of sockets. Every
donor has an uplink, and some share a line; the joiner's downlink is shared by all. A line is divided evenly among the streams
that have something to send, or unevenly (`uneven`: by weights between 0.5 and 1.5, drawn anew every second). Messages take
25 ms each way. `received`: the bytes that came to the joiner, also after the state was complete, in states. The processor
counts for nothing.
"""

import argparse
import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import torch
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.numerics.digest import blob_root, state_chunks, state_index
from adloco_p2p.swarm.transfer.chunk_fetcher import ChunkFetcher
from adloco_p2p.swarm.transfer.chunk_server import Blob, ChunkServer
from adloco_p2p.swarm.transfer.download import Download
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.framed_stream import FramedStream
from benchmarks.virtual_time import play

MBIT = 125_000.0
"""Bytes per second."""
DELAY_SECONDS = 0.025
TICK_SECONDS = 0.01
KIND = "state"
FETCH_SECONDS = 3600.0


# --- lines ----------------------------------------------------------------------------------------------------------------


@dataclass
class Donor:
    """A donor and its uplink."""

    up: float
    """Mbit/s."""
    line: str = ""
    """The line that it shares with others, if there is one."""
    after_bytes: float = float("inf")
    """After so many bytes its uplink ..."""
    then: float = 0.0
    """... has this rate."""
    late_seconds: float = 0.0
    """How much longer it takes to connect to it."""


@dataclass(eq=False)
class Pipe:
    """The bytes on their way from one end of a stream to the other."""

    carried: Callable[[bytes], None]
    drained: Callable[[], None]
    donor: PeerId | None
    """None: from the joiner, whose requests wait for nothing."""
    queued: bytearray = field(default_factory=bytearray)
    is_closed: bool = False


class Lines:
    """All lines. They carry bytes while `carry` runs."""

    def __init__(self, donors: Mapping[PeerId, Donor], rates: Mapping[str, float], down: float, *, uneven: int | None) -> None:
        self.donors = donors
        self.sent = dict.fromkeys(donors, 0)
        self.pipes: list[Pipe] = []
        self._rates, self._down = rates, down
        self._random = None if uneven is None else Random(uneven)
        self._weights = dict.fromkeys(donors, 1.0)

    def _lines(self, donor: PeerId) -> dict[str, float]:
        """The lines from this donor to the joiner and the bytes that each carries in a tick."""
        about = self.donors[donor]
        up = about.up if self.sent[donor] < about.after_bytes else about.then
        rates = {f"up {donor}": up, "down": self._down} | ({about.line: self._rates[about.line]} if about.line else {})
        return {name: rate * MBIT * TICK_SECONDS for name, rate in rates.items()}

    def _shares(self, sending: Sequence[PeerId]) -> dict[PeerId, float]:
        """The bytes of each donor in a tick: the line that is shortest for those on it is divided first, and so on."""
        lines = {donor: self._lines(donor) for donor in sending}
        left = {name: size for of_donor in lines.values() for name, size in of_donor.items()}
        shares: dict[PeerId, float] = {}
        while len(shares) < len(lines):
            waiting = [donor for donor in lines if donor not in shares]
            weights = {name: sum(self._weights[donor] for donor in waiting if name in lines[donor]) for name in left}
            shortest = min((name for name in left if weights[name]), key=lambda name: left[name] / weights[name])
            each = left[shortest] / weights[shortest]
            for donor in (donor for donor in waiting if shortest in lines[donor]):
                shares[donor] = each * self._weights[donor]
                for name in lines[donor]:
                    left[name] = max(0.0, left[name] - shares[donor])
        return shares

    async def carry(self) -> None:
        owed, tick = dict.fromkeys(self.donors, 0.0), 0
        while True:
            if self._random is not None and tick % 100 == 0:
                self._weights = {donor: self._random.uniform(0.5, 1.5) for donor in self.donors}
            tick += 1
            pipes = {pipe.donor: pipe for pipe in self.pipes if pipe.queued and not pipe.is_closed and pipe.donor is not None}
            for donor, share in self._shares(list(pipes)).items():
                owed[donor] += share
                piece = bytes(pipes[donor].queued[: int(owed[donor])])
                owed[donor] = min(owed[donor] - len(piece), 1.0)
                if piece:
                    del pipes[donor].queued[: len(piece)]
                    self.sent[donor] += len(piece)
                    pipes[donor].carried(piece)
                    pipes[donor].drained()
            await asyncio.sleep(TICK_SECONDS)


class End(asyncio.Transport):
    """One end of a stream, as far as `FramedStream` uses a transport."""

    def __init__(self, lines: Lines, donor: PeerId | None) -> None:
        super().__init__()
        self.other: End
        self._lines = lines
        self._stream: asyncio.BufferedProtocol | None = None
        self._came = bytearray()
        self._is_paused = self._is_closed = self._is_full = False
        self._high = 1 << 16
        self._on_the_way: deque[bytes] = deque()
        self._pipe = Pipe(self._send, self._drained, donor)
        lines.pipes.append(self._pipe)

    def _send(self, data: bytes) -> None:
        self._on_the_way.append(data)  # timers of one instant have no order
        asyncio.get_running_loop().call_later(DELAY_SECONDS, self._deliver)

    def _deliver(self) -> None:
        data = self._on_the_way.popleft()
        if not self.other._is_closed:
            self.other._came += data
            self.other._read()

    def _read(self) -> None:
        while self._came and self._stream is not None and not self._is_paused and not self._is_closed:
            room = cast(memoryview, self._stream.get_buffer(len(self._came)))
            num_bytes = min(len(room), len(self._came))
            room[:num_bytes] = self._came[:num_bytes]
            del self._came[:num_bytes]
            self._stream.buffer_updated(num_bytes)

    def writelines(self, parts: Any) -> None:
        data = b"".join(parts)
        if self._pipe.donor is None:
            self._send(data)
            return
        self._pipe.queued += data
        if len(self._pipe.queued) > self._high and not self._is_full and self._stream is not None:
            self._is_full = True
            self._stream.pause_writing()

    def _drained(self) -> None:
        if self._is_full and len(self._pipe.queued) <= self._high // 4 and self._stream is not None:
            self._is_full = False
            self._stream.resume_writing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._stream = cast(asyncio.BufferedProtocol, protocol)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return len(self._pipe.queued)

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        asyncio.get_running_loop().call_soon(self._read)

    def is_closing(self) -> bool:
        return self._is_closed

    def abort(self) -> None:
        if not self._is_closed:
            self._is_closed = self._pipe.is_closed = True
            self._lines.pipes.remove(self._pipe)
            asyncio.get_running_loop().call_later(DELAY_SECONDS, self.other._lost)

    def _lost(self) -> None:
        if not self._is_closed and self._stream is not None:
            self._stream.connection_lost(None)

    close = abort


# --- peers ----------------------------------------------------------------------------------------------------------------


class DonorsDaemon:
    """What accepts the streams to one donor."""

    def __init__(self, name: PeerId) -> None:
        self.peer_id = name
        self.accept: Callable[..., Any]

    async def add_binary_stream_handler(self, _handler: str, accept: Callable[..., Any]) -> None:
        self.accept = accept


class Joiner(Endpoint):
    """Opens streams to donors."""

    def __init__(self, lines: Lines, daemons: Mapping[PeerId, DonorsDaemon]) -> None:
        super().__init__(cast(Any, SimpleNamespace(peer_id="joiner")))
        self._lines, self._daemons = lines, daemons
        self._accepted: list[asyncio.Task[None]] = []

    async def open_stream(self, peer: PeerId, handler: str, *, timeout_seconds: float) -> FramedStream:  # noqa: ARG002
        await asyncio.sleep(2 * DELAY_SECONDS + self._lines.donors[peer].late_seconds)
        ours, theirs = End(self._lines, None), End(self._lines, peer)
        ours.other, theirs.other = theirs, ours
        info = SimpleNamespace(peer_id="joiner")
        self._accepted.append(asyncio.create_task(self._daemons[peer].accept(cast(StreamInfo, info), *_ends(theirs))))
        return self.take_over(await FramedStream.take_over(peer, *_ends(ours)))


def _ends(end: End) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader = asyncio.StreamReader()
    reader.set_transport(end)
    return reader, cast(asyncio.StreamWriter, SimpleNamespace(transport=end))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A state, its donors, and the lines between."""

    name: str
    donors: Sequence[Donor]
    down: float = 1000.0
    """Mbit/s of the joiner's downlink."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Mbit/s of shared lines."""
    num_bytes: int = 5_000_000


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """The result of a case."""

    seconds: float
    """Until the whole state was there."""
    received: float
    """Copies of the state that came to the joiner, with those of the time after."""
    problems: Mapping[PeerId, str]


async def _fetched(case: Case, seed: int, uneven: int | None) -> Fetched:
    loop = asyncio.get_running_loop()
    drawn = torch.Generator().manual_seed(0)
    outer, momentum = (torch.randn(case.num_bytes // 8, generator=drawn) for _ in range(2))
    index = state_index(outer, momentum)
    blob = Blob(index, [chunk.toreadonly() for chunk in state_chunks(outer, momentum)])
    donors = {PeerId(f"donor {number}"): donor for number, donor in enumerate(case.donors)}
    lines = Lines(donors, case.rates, case.down, uneven=uneven)

    async def find(root: Digest) -> Blob | None:
        return blob if root == blob_root(index) else None

    daemons = {name: DonorsDaemon(name) for name in donors}
    for daemon in daemons.values():
        await ChunkServer(Endpoint(cast(Any, daemon)), KIND, find).start()
    carrying = asyncio.create_task(lines.carry())
    here = torch.zeros_like(outer), torch.zeros_like(momentum)
    room = state_chunks(*here)
    download = Download(
        blob_root(index), lambda _: room, max_chunks=len(room), shuffle=Random(seed).shuffle, clock=loop.time
    )  # as `StateFetcher` makes it
    fetcher = ChunkFetcher(Joiner(lines, daemons), KIND)
    begun = loop.time()
    problems = await fetcher.fetch(download, list(donors), timeout_seconds=FETCH_SECONDS)
    seconds = loop.time() - begun
    assert problems or (torch.equal(here[0], outer) and torch.equal(here[1], momentum))
    await fetcher._leaving.settled()
    carrying.cancel()
    return Fetched(seconds=seconds, received=sum(lines.sent.values()) / case.num_bytes, problems=problems)


def fetched(case: Case, *, seed: int = 0, uneven: int | None = None) -> Fetched:
    """Play a case. `seed`: of the order of the chunks. `uneven`: the seed of uneven shares of lines; None for even ones."""
    return play(_fetched(case, seed, uneven))


CHUNK = 1 << 20
CASES = (
    Case(name="a fast donor and a slow one", donors=[Donor(50), Donor(1)]),
    Case(name="a fast donor and a slow one, 40 MB", donors=[Donor(50), Donor(1)], num_bytes=40_000_000),
    Case(name="four donors of 10 Mbit/s", donors=[Donor(10)] * 4),
    Case(name="four donors of 10 Mbit/s, 24 MB", donors=[Donor(10)] * 4, num_bytes=24_000_000),
    Case(name="four donors of 10 Mbit/s, 2 MB", donors=[Donor(10)] * 4, num_bytes=2_000_000),
    Case(name="four donors of 100 Mbit/s, 40 MB", donors=[Donor(100)] * 4, num_bytes=40_000_000),
    Case(name="a donor of 300 Mbit/s, 40 MB", donors=[Donor(300)], num_bytes=40_000_000),
    Case(name="two donors behind one line of 5 Mbit/s", donors=[Donor(50, "shared")] * 2, rates={"shared": 5}),
    Case(name="the same, a state of two chunks", donors=[Donor(50, "shared")] * 2, rates={"shared": 5}, num_bytes=2 << 20),
    Case(name="one of two donors stalls in its first chunk", donors=[Donor(10), Donor(10, after_bytes=CHUNK / 2)]),
    Case(name="one of four donors stalls in its first chunk", donors=[*[Donor(10)] * 3, Donor(10, after_bytes=CHUNK / 2)]),
    Case(
        name="one of four donors behind a downlink of 5 Mbit/s stalls",
        donors=[*[Donor(50)] * 3, Donor(50, after_bytes=CHUNK / 2)],
        down=5,
    ),
    Case(
        name="one of two donors slows down to 10 kB/s in its first chunk",
        donors=[Donor(10), Donor(10, after_bytes=CHUNK / 2, then=0.08)],
    ),
    Case(name="four donors, a downlink of 5 Mbit/s", donors=[Donor(50)] * 4, down=5),
    Case(name="four donors, a downlink of 1 Mbit/s", donors=[Donor(50)] * 4, down=1),
    Case(name="eight donors, a downlink of 1 Mbit/s, 2 MB", donors=[Donor(50)] * 8, down=1, num_bytes=2_000_000),
    Case(name="four donors, a downlink of 5 Mbit/s, 40 MB", donors=[Donor(50)] * 4, down=5, num_bytes=40_000_000),
    Case(name="a slow donor, a fast one 2 s later", donors=[Donor(0.5), Donor(50, late_seconds=2.0)], num_bytes=1_000_000),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="orders of chunks, and uneven shares of lines, per case")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    args = parser.parse_args()
    rows = []
    print(f"{'case':66}  seconds  received  uneven: seconds  received")
    for case in CASES:
        even = [fetched(case, seed=seed) for seed in range(args.seeds)]
        uneven = [fetched(case, seed=seed, uneven=seed) for seed in range(args.seeds)]
        means = [
            sum(figure) / args.seeds
            for each in (even, uneven)
            for figure in zip(*((one.seconds, one.received) for one in each), strict=True)
        ]
        print(f"{case.name:66}{means[0]:9.2f}{means[1]:10.2f}{means[2]:17.2f}{means[3]:10.2f}", flush=True)
        rows.append(
            {"case": case.name} | dict(zip(("seconds", "received", "uneven_seconds", "uneven_received"), means, strict=True))
        )
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
