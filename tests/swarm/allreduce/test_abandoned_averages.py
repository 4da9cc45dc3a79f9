"""What an attempt leaves behind when no retry comes, or when its retry is given up before it has begun."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adloco_p2p.core.model.averages import LostShare
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.swarm.allreduce.averager import Averager
from adloco_p2p.swarm.transport.endpoint import Endpoint
from benchmarks.unplanned import unplanned
from tests.swarm.averaging_peers import key_of, until

ME, OTHER, AVERAGE = PeerId("me"), PeerId("other"), (3, InstanceId(1))


class Decided:
    """An attempt that failed when it had decided, and a retry of it that never begins."""

    decision = key_of("decision")

    def __init__(self) -> None:
        self.spec = SimpleNamespace(key=key_of("first"), round=AVERAGE[0], instance=AVERAGE[1])
        self.done: list[str] = []

    @property
    def sent(self) -> None:
        return None

    def rule_of_rest(self, members: object) -> object:
        return rule_named("mean")

    async def completed_by(self, spec: object, timeout_seconds: float) -> None:
        self.done.append("completed by")
        await asyncio.get_running_loop().create_future()

    def let_go(self) -> None:
        self.done.append("let go")

    async def closed(self) -> None:
        self.done.append("closed")


def averager_with(attempt: Any) -> Any:
    """Without a network; `told` are the notes to other members."""
    endpoint = Endpoint(SimpleNamespace(peer_id=ME))
    averager: Any = Averager(endpoint, sign=lambda *_: "", verify=lambda *_: True, on_evidence=lambda _: None)
    averager._context, averager.told = SimpleNamespace(own_peer=ME), []
    averager._attempts.running[attempt.spec.key] = attempt
    averager._attempts._ended[attempt.spec.key] = None
    averager._decided.keep(attempt)

    async def tell(spec: Any, reply: Any, **_: object) -> None:
        averager.told.append((spec.key, reply.reason, reply.suspects))

    averager._notify_members = tell
    return averager


def test_an_attempt_that_had_decided_is_let_go_when_no_retry_comes() -> None:
    async def wait() -> None:
        attempt = Decided()
        averager = averager_with(attempt)
        averager._decided.expire_later(*AVERAGE, 0.0)
        await until(lambda: "closed" in attempt.done)
        assert attempt.done == ["let go", "closed"]
        assert not averager._decided._kept and not averager._attempts.running and not averager._decided._expiries

    asyncio.run(asyncio.wait_for(wait(), 240.0))


def test_a_retry_that_is_given_up_before_it_begins_notifies_the_others_and_leaves_the_attempt() -> None:
    async def give_up() -> None:
        attempt = Decided()
        averager = averager_with(attempt)
        averager._decided.expire_later(*AVERAGE, 3600.0)
        retry = averager.average(
            unplanned(
                key=key_of("retry"),
                weights=((ME, 1), (OTHER, 1)),
                timeout_seconds=60.0,
                round=AVERAGE[0],
                instance=AVERAGE[1],
                attempt=1,
                lost=(LostShare(1, 1.0),),
                completes=attempt.decision,
            ),
            torch.ones(10),
        )
        task = asyncio.create_task(retry)
        await until(lambda: bool(attempt.done) or task.done())
        assert not averager._decided._expiries, "a retry goes on"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await averager._background.settled()
        told = "it gave the attempt up, to take part in the next one"
        assert averager.told == [(key_of("retry"), told, ())] and averager._attempts.is_used(key_of("retry"))
        assert (
            averager._decided._kept == {AVERAGE: attempt}
            and attempt.done == ["completed by"]
            and list(averager._decided._expiries) == [AVERAGE]
        )
        averager._decided._expiries[AVERAGE].cancel()

    asyncio.run(asyncio.wait_for(give_up(), 240.0))
