"""Several real peers in one process and one event loop, for the tests of averaging."""

import asyncio
import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import pytest
import torch
from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.utils import DispatchFailure

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.averages import RepairAverage
from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.core.model.ledger_entry import Evidence
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import AveragingError
from adloco_p2p.swarm.allreduce.allreduce_spec import NO_INSTANCE
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.allreduce.averager import Averager
from adloco_p2p.swarm.allreduce.topology import AveragingLimits
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.framed_stream import Pacing
from benchmarks.unplanned import unplanned

LIMITS = AveragingLimits(
    stall_seconds=60.0,
    longest_stall_seconds=240.0,
    connect_seconds=120.0,
    hello_seconds=120.0,
    note_seconds=120.0,
    stranger_seconds=120.0,
)
"""On a busy machine honest peers are slow. Where silence or a deadline is tested, the clock is put forward: see `Clock`."""
TIMEOUT_SECONDS = 240.0
"""Of an average, and of whatever a test waits for: reached by no honest peer."""
STEP_SECONDS = 0.5
"""By which `Peers.let_pass` puts the clock forward: so little that no look at the streams takes it for a suspended process."""


def key_of(name: str) -> Digest:
    return canonical.digest(name)


def averaged(results: Iterable[Averaged | BaseException]) -> list[Averaged]:
    """Results of averages of which none may fail."""
    made = []
    for result in results:
        assert isinstance(result, Averaged), result
        made.append(result)
    return made


def suspects_of(result: object) -> tuple[str, ...]:
    assert isinstance(result, AveragingError), result
    return result.suspects


def measured(result: Averaged) -> PseudoGradientStatistics:
    assert result.finished.statistics is not None
    return result.finished.statistics


def residual_of(result: Averaged) -> torch.Tensor:
    assert result.residual is not None
    return result.residual


def sign(peer: PeerId, payload: bytes) -> str:
    """Nobody forges it here but who means to."""
    return hashlib.sha256(peer.encode("ascii") + payload).hexdigest()


def signing(p2p: P2P, evidence: list[Evidence] | None = None) -> dict[str, Any]:
    """Arguments of an averager; what it proves comes into `evidence`."""
    me = PeerId(p2p.peer_id.to_base58())
    return {
        "sign": lambda payload: sign(me, payload),
        "verify": lambda peer, payload, signature: sign(peer, payload) == signature,
        "on_evidence": [].append if evidence is None else evidence.append,
    }


def vectors_of(num_peers: int, size: int, *, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for _ in range(num_peers)]


def alike(num_hosts: int, *, size: int = 20_003, seed: int = 0) -> list[torch.Tensor]:
    """Contributions as honest hosts make them: a common direction and noise."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(size, generator=generator)
    return [common + torch.randn(size, generator=generator) for _ in range(num_hosts)]


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on by hand, too."""

    ahead_seconds = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_seconds


async def until(is_so: Callable[[], bool]) -> None:
    """Bounded by the test's own timeout."""
    while True:
        if is_so():
            return
        await asyncio.sleep(0.001)


async def all_connected(p2ps: Sequence[P2P]) -> None:
    """A daemon dials the others after it has begun to answer."""
    for p2p in p2ps:
        num_seen = 0
        while num_seen < len(p2ps) - 1:
            num_seen = len(await p2p.list_peers())


@dataclass
class Peer:
    p2p: P2P
    averager: Averager

    @property
    def peer_id(self) -> PeerId:
        return PeerId(self.p2p.peer_id.to_base58())

    @property
    def daemon_pid(self) -> int:
        return self.p2p._child.pid

    def attempt(self, name: str) -> Any:
        """The one that goes on, if there is one."""
        return self.averager._attempts.running.get(key_of(name))

    def average(
        self,
        name: str,
        weights: tuple[tuple[PeerId, int], ...],
        vector: torch.Tensor,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        on_decided: Callable[[Digest], None] = lambda _: None,
        on_not_shown: Callable[[PeerId, PeerId], None] = lambda *_: None,
        **more: Any,
    ) -> Coroutine[Any, Any, Averaged]:
        """`more`: fields of the core's `Average`."""
        asked = unplanned(key=key_of(name), weights=weights, timeout_seconds=timeout_seconds, **more)
        return self.averager.average(asked, vector, on_decided=on_decided, on_not_shown=on_not_shown)

    def repair(
        self, name: str, result: Averaged, donors: Iterable["Peer"], *, vector: torch.Tensor | None = None
    ) -> Coroutine[Any, Any, Averaged]:
        asked = RepairAverage(
            instance=NO_INSTANCE,
            round=0,
            attempt=0,
            key=key_of(name),
            digest=result.finished.digest,
            contributors=result.finished.contributors,
            from_peers=tuple(donor.peer_id for donor in donors),
            timeout_seconds=TIMEOUT_SECONDS,
        )
        return self.averager.repair(asked, size=result.vector.numel(), vector=vector)


class Peers:
    """A full mesh of peers. `run` drives the event loop that they live in."""

    def __init__(
        self,
        num_peers: int,
        *,
        part_bytes: int = 4096,
        limits: AveragingLimits = LIMITS,
        rule: str = "mean",
        paces: Mapping[int, Pacing] = MappingProxyType({}),
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`paces`: number of a peer -> what limits its streams. `settings`: of every averager, beside these."""
        self._num_peers = num_peers
        self._rule = rule
        self._paces = paces
        self._settings = settings
        self._part_bytes = part_bytes
        self._limits = limits
        self._runner = asyncio.Runner(loop_factory=Clock)
        self.run = self._runner.run
        self.evidence: list[Evidence] = []
        """What any of them can prove."""
        self.loop_errors: list[dict] = []
        """What reached the event loop's handler of unhandled exceptions."""

    def __enter__(self) -> "Peers":
        self.run(self._start())
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.run(self._stop())
        self._runner.close()

    async def _start(self) -> None:
        def note(_loop: asyncio.AbstractEventLoop, context: dict) -> None:
            # Not ours: hivemind raises the first for a stream that arrives while its handler is being removed, asyncio of
            # Python 3.11 the second for a connection whose handler is cancelled.
            if not isinstance(context.get("exception"), DispatchFailure | asyncio.CancelledError):
                self.loop_errors.append(context)

        asyncio.get_running_loop().set_exception_handler(note)
        self.list: list[Peer] = []
        known: list = []
        for number in range(self._num_peers):
            p2p = await P2P.create(initial_peers=known, startup_timeout=240)
            known += await p2p.get_visible_maddrs()
            averager = Averager(
                Endpoint(p2p, pace=self._paces.get(number)),
                part_bytes=self._part_bytes,
                limits=self._limits,
                aggregation=self._rule,
                **self._settings,
                **signing(p2p, self.evidence),
            )
            await averager.start()
            self.list.append(Peer(p2p, averager))
        await all_connected([peer.p2p for peer in self.list])

    async def _stop(self) -> None:
        for peer in self.list:
            with contextlib.suppress(ProcessLookupError):
                thaw(peer)  # a test that failed may have left it frozen
        for peer in self.list:
            await peer.averager.stop()
        for peer in self.list:
            await peer.p2p.shutdown()

    def __getitem__(self, index: int) -> Peer:
        return self.list[index]

    def weights(self, *weights: int) -> tuple[tuple[PeerId, int], ...]:
        return tuple((self.list[index].peer_id, weight) for index, weight in enumerate(weights))

    @contextlib.contextmanager
    def using(self, **settings: Any) -> Iterator[None]:
        """Every peer has an averager with other settings meanwhile."""
        usual = [peer.averager for peer in self.list]

        async def exchange(averagers: list[Averager]) -> None:
            for peer, averager in zip(self.list, averagers, strict=True):
                await peer.averager.stop()
                peer.averager = averager
                await averager.start()

        self.run(
            exchange(
                [
                    Averager(
                        Endpoint(peer.p2p),
                        part_bytes=self._part_bytes,
                        limits=self._limits,
                        **signing(peer.p2p, self.evidence),
                        **settings,
                    )
                    for peer in self.list
                ]
            )
        )
        try:
            yield
        finally:
            self.run(exchange(usual))

    def average(
        self,
        name: str,
        vectors: list[torch.Tensor],
        weights: tuple[int, ...],
        *,
        who: tuple[int, ...] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        meanwhile: Callable[[], Awaitable[object]] | None = None,
        **more: Any,
    ) -> list[Averaged | BaseException]:
        """What each of `who` (all by default) gets; every peer gives its vector. `more`: see `Peer.average`."""

        async def all_of_them() -> list[Averaged | BaseException]:
            tasks = [
                asyncio.create_task(
                    self.list[index].average(
                        name, self.weights(*weights), vectors[index], timeout_seconds=timeout_seconds, **more
                    )
                )
                for index in (who or range(len(weights)))
            ]
            if meanwhile is not None:
                await meanwhile()
            return await asyncio.gather(*tasks, return_exceptions=True)

        return self.run(all_of_them())

    async def let_pass(self, name: str, until: Callable[[], bool], *, dead: Peer | None = None) -> None:
        """The clock goes on until it is so, as fast as signs of life of all but the dead one come on the streams of this
        average: on a slow machine, too, a peer that lives is never silent for long."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Clock)
        while not until():
            heard = [
                stream.last_received
                for peer in self.list
                if peer is not dead and (attempt := peer.attempt(name)) is not None
                for stream in attempt._state.watch.streams
                if dead is None or stream.peer != dead.peer_id
            ]
            if loop.time() - min(heard, default=loop.time()) < 3.0:
                loop.ahead_seconds += STEP_SECONDS
            await asyncio.sleep(0.002)

    async def meet_deadline(self, name: str, who: tuple[int, ...], missing: int) -> None:
        """Put the clock forward to the deadline as soon as all of `who` know that it is the missing one whom they wait for."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Clock)

        def all_know() -> bool:
            attempts = [self.list[index].attempt(name) for index in who]
            return all(attempt is not None and attempt._state.awaited_by_result() == {missing} for attempt in attempts)

        await until(all_know)
        loop.ahead_seconds += TIMEOUT_SECONDS


def mesh_of(num_peers: int) -> Any:
    """The fixture of a module whose tests share so many peers, and end without an error that nobody handled."""

    @pytest.fixture(scope="module")
    def mesh() -> Iterator[Peers]:
        with Peers(num_peers) as started:
            yield started
        assert started.loop_errors == []

    return mesh


def kill(peer: Peer) -> None:
    """As if the machine were gone: the daemon dies without a word."""
    os.kill(peer.daemon_pid, signal.SIGKILL)


def freeze(peer: Peer) -> None:
    """Returns when every thread stands still: until then they go on answering."""
    os.kill(peer.daemon_pid, signal.SIGSTOP)
    while not all(map(_stands_still, Path(f"/proc/{peer.daemon_pid}/task").iterdir())):
        time.sleep(0.001)


def _stands_still(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
        return True


def thaw(peer: Peer) -> None:
    os.kill(peer.daemon_pid, signal.SIGCONT)
