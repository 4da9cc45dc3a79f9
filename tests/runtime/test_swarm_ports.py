"""The adapters of the swarm's classes, where the conformance suite does not look."""

import asyncio
from typing import Any

import pytest
import torch

from adloco_p2p.core.model.effects import FetchState
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.runtime.adapters import swarm_ports
from adloco_p2p.runtime.adapters.swarm_ports import NetworkStates

INSTANCE = InstanceId(0)
ASKED = FetchState(instance=INSTANCE, round=1, digest=Digest("a" * 64), from_peers=())


class Server:
    """Of states, which nobody asks for."""

    def offer(self, *_: object) -> None:
        pass


class Fetcher:
    """Its fetches fill the tensors, and then wait for a donor to close its stream."""

    def __init__(self) -> None:
        self.filled: list[torch.Tensor] = []
        self.is_filled = asyncio.Event()

    async def fetch(self, _asked: FetchState, outer: torch.Tensor, _momentum: torch.Tensor, **_: object) -> None:
        self.filled.append(outer)
        self.is_filled.set()
        await asyncio.Event().wait()


class Bench:
    """States, and a fetcher whose fetches never end by themselves."""

    def __init__(self) -> None:
        fetcher, server = Fetcher(), Server()
        of_fetcher: Any = fetcher
        of_server: Any = server
        self.fetcher = fetcher
        self.states = NetworkStates(
            of_server, of_fetcher, num_parameters=4, dtypes=(torch.float32, torch.float32), write=lambda _: None
        )

    async def begun(self) -> "asyncio.Task[Any]":
        self.fetcher.is_filled.clear()
        task = asyncio.create_task(self.states.fetch(ASKED))
        await self.fetcher.is_filled.wait()
        return task

    async def broken_off(self) -> None:
        task = await self.begun()
        task.cancel()
        await asyncio.wait([task])


def test_a_fetch_that_is_cancelled_after_its_last_chunk_keeps_the_state_until_the_instance_has_one() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.broken_off()
        await bench.broken_off()
        first, second = bench.fetcher.filled
        assert first is second, "the next attempt goes on in the same memory, and asks for no chunk that is right"
        bench.states.offer(INSTANCE, 1, ASKED.digest, (torch.zeros(4), torch.zeros(4)))
        await asyncio.sleep(0)
        assert bench.states._partial == {}, "an instance that has a state keeps no memory for another one"

    asyncio.run(scenario())


def test_a_state_that_is_not_fetched_any_more_leaves_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a plan gives the instance to other hosts before it has come."""
    monkeypatch.setattr(swarm_ports, "PARTIAL_SECONDS", 0.0)

    async def scenario() -> None:
        bench = Bench()
        task = await bench.begun()
        task.cancel()
        await bench.begun()  # before the first has ended
        await asyncio.wait([task])
        for _ in range(3):
            await asyncio.sleep(0)
        assert list(bench.states._partial) == [INSTANCE], "another attempt is under way"
        await bench.broken_off()
        for _ in range(3):
            await asyncio.sleep(0)
        assert bench.states._partial == {} == bench.states._attempts

    asyncio.run(scenario())
