"""A real average learns how long its members are silent while they live."""

import asyncio

import torch

from adloco_p2p.swarm.allreduce.averaged import Averaged
from tests.swarm.averaging_peers import LIMITS, Peers, freeze, thaw, until

PAUSE_SECONDS = LIMITS.stall_seconds / 2


def test_a_silence_that_ended_makes_the_peer_wait_longer_for_the_next_one() -> None:
    with Peers(2) as peers:
        averager, loop = peers[0].averager, peers.run(_loop())

        def average(index: int) -> asyncio.Task[Averaged]:
            call = peers[index].average("pause", peers.weights(1, 1), torch.ones(5_000))
            return loop.create_task(call)

        def silence_seconds() -> float:
            streams = peers[0].attempt("pause")._state.watch.streams
            return max((loop.time() - stream.last_received for stream in streams), default=0.0)

        async def pause_in_the_middle() -> list[Averaged]:
            early = average(0)
            await until(lambda: bool((attempt := peers[0].attempt("pause")) and attempt._state.watch.streams))
            assert averager._context.stall_detector.limit_seconds == LIMITS.stall_seconds
            freeze(peers[1])
            try:
                await peers.let_pass("pause", lambda: silence_seconds() > PAUSE_SECONDS, dead=peers[1])
            finally:
                thaw(peers[1])
            await until(lambda: averager._context.stall_detector.limit_seconds > LIMITS.stall_seconds)
            return [*await asyncio.gather(early, average(1))]

        assert len({result.finished.digest for result in peers.run(pause_in_the_middle())}) == 1


async def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
