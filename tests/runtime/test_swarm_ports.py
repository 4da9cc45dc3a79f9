"""The adapters of the swarm's classes, where the conformance suite does not look."""

import asyncio
from typing import Any

import torch

from adloco_p2p.core.model.effects import FetchState
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.runtime.adapters.swarm_ports import NetworkStates

INSTANCE = InstanceId(0)


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


def test_a_fetch_that_is_cancelled_after_its_last_chunk_keeps_the_state_until_the_instance_has_one() -> None:
    async def scenario() -> None:
        fetcher: Any = Fetcher()
        server: Any = Server()
        states = NetworkStates(server, fetcher, num_parameters=4, dtypes=(torch.float32, torch.float32), write=lambda _: None)
        asked = FetchState(instance=INSTANCE, round=1, digest=Digest("a" * 64), from_peers=())

        async def broken_off() -> None:
            fetcher.is_filled.clear()
            task = asyncio.create_task(states.fetch(asked))
            await fetcher.is_filled.wait()
            task.cancel()
            await asyncio.wait([task])

        await broken_off()
        await broken_off()
        first, second = fetcher.filled
        assert first is second, "the next attempt goes on in the same memory, and asks for no chunk that is right"
        states.offer(INSTANCE, 1, asked.digest, (torch.zeros(4), torch.zeros(4)))
        await asyncio.sleep(0)
        assert states._partial == {}, "an instance that has a state keeps no memory for another one"

    asyncio.run(scenario())
