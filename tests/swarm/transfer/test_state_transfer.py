"""State over real streams on loopback: whole, from bad donors, and in pieces."""

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace

import pytest
import torch

from adloco_p2p.core.model.effects import FetchState
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.errors import StateTransferFailed
from adloco_p2p.numerics.digest import state_chunks, state_digest, state_index
from adloco_p2p.swarm.transfer import chunk_fetcher, chunk_server
from adloco_p2p.swarm.transfer.chunk_fetcher import ChunkFetcher
from adloco_p2p.swarm.transfer.chunk_protocol import handler_name
from adloco_p2p.swarm.transfer.download import Download
from adloco_p2p.swarm.transfer.state_transfer import KIND, StateFetcher, StateServer
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.framed_stream import FRAME_BYTES, FrameKind, open_stream
from adloco_p2p.swarm.transport.rate_limiter import OVERHEAD, RateLimiter
from adloco_p2p.swarm.transport.traffic import Traffic
from tests.swarm.averaging_peers import Clock, until
from tests.swarm.patience import PATIENCE_SECONDS
from tests.swarm.swarm_hosts import started_hosts

INSTANCE = InstanceId(3)
ROUND = 7
NUM_PARAMETERS = 700_001
"""Two times 2.67 MiB: six chunks, two of them short."""
NUM_CHUNKS = 6


def _state():
    torch.manual_seed(0)
    outer, momentum = torch.randn(NUM_PARAMETERS), torch.randn(NUM_PARAMETERS)
    return outer, momentum, state_digest(outer, momentum)


class CountingPace:
    """No cap, but counts what passes, and does something once after so many bytes."""

    up_piece_bytes = down_piece_bytes = FRAME_BYTES

    def __init__(self, *, after_bytes=None, do=None):
        self.num_bytes = 0
        self._after_bytes = after_bytes
        self._do = do

    async def sending(self, num_bytes):
        self.num_bytes += num_bytes
        if self._after_bytes is not None and self.num_bytes >= self._after_bytes:
            self._after_bytes = None
            await self._do()

    def received(self, num_bytes):
        return 0.0


@asynccontextmanager
async def swarm(workdir, num_donors):
    """A joiner and donors that offer the state; each donor counts what it uploads."""
    async with AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(started_hosts(workdir, 1 + num_donors))
        outer, momentum, root = _state()
        servers = []
        for host in hosts[1:]:
            server = StateServer(Endpoint(host.p2p, pace=CountingPace()))
            server.offer(INSTANCE, ROUND, root, outer.clone(), momentum.clone())
            await server.start()
            stack.push_async_callback(server.stop)
            servers.append(server)
        yield hosts, servers, (outer, momentum, root)


async def _fetch(
    host, root, donors, target, *, instance=INSTANCE, round_number=ROUND, timeout_seconds=PATIENCE_SECONDS, server=None, **more
):
    endpoint = Endpoint(host.p2p)
    fetcher = StateFetcher(endpoint, server or StateServer(endpoint), silence_seconds=PATIENCE_SECONDS)
    asked = FetchState(instance=instance, round=round_number, digest=root, from_peers=tuple(donors))
    await fetcher.fetch(asked, *target, timeout_seconds=timeout_seconds, **more)


def _empty():
    return torch.zeros(NUM_PARAMETERS), torch.zeros(NUM_PARAMETERS)


async def _lie(server):
    """From now on the server has the true index and delivers other chunks."""
    offer = server._offers[INSTANCE][ROUND]
    assert await offer.blob()
    for tensor in offer._tensors:
        tensor.add_(1.0)


def test_the_state_arrives_whole_from_several_donors(tmp_path):
    async def scenario():
        async with swarm(tmp_path, 3) as ((joiner, *donors), servers, (outer, momentum, root)):
            target, seen = _empty(), []
            await _fetch(
                joiner,
                root,
                [donor.me for donor in donors],
                target,
                on_progress=lambda *here_and_all: seen.append(here_and_all),
            )
            assert seen[0] == (0, 8 * NUM_PARAMETERS) and seen[-1] == (8 * NUM_PARAMETERS, 8 * NUM_PARAMETERS)
            assert seen == sorted(seen)
            assert torch.equal(target[0], outer)
            assert torch.equal(target[1], momentum)
            uploads = [server._server._endpoint.pace.num_bytes for server in servers]
            assert 8 * NUM_PARAMETERS <= sum(uploads) <= 2 * 8 * NUM_PARAMETERS  # no chunk is asked of more than two

    asyncio.run(scenario())


def test_joiners_serve_each_other_what_they_have_verified(tmp_path):
    """The donor stalls when the first joiner has some chunks. The second joiner, for which no donor has a place, gets these
    from the first one, and then what comes after them."""

    async def scenario():
        async with swarm(tmp_path, 3) as ((second, first, donor, busy), (passing, server, full), (outer, momentum, root)):
            passing.withdraw(INSTANCE)  # the first joiner's
            full._server._max_downloads = 0
            stalls, goes_on, has_some = asyncio.Event(), asyncio.Event(), asyncio.Event()

            async def stall():
                stalls.set()
                await goes_on.wait()

            def watch(verified, _):
                if verified:
                    has_some.set()

            server._server._endpoint.pace = CountingPace(after_bytes=5 << 20, do=stall)
            targets = _empty(), _empty()

            async def join_first():
                await _fetch(first, root, [donor.me], targets[0], server=passing)
                passing.offer(INSTANCE, ROUND, root, *targets[0])

            async with asyncio.TaskGroup() as group:
                group.create_task(join_first())
                await stalls.wait()
                group.create_task(_fetch(second, root, [first.me, busy.me], targets[1], on_progress=watch))
                await has_some.wait()
                goes_on.set()
            assert all(torch.equal(target[0], outer) and torch.equal(target[1], momentum) for target in targets)
            assert [one._server._endpoint.pace.num_bytes for one in (server, passing, full)] == [8 * NUM_PARAMETERS] * 2 + [0]

    asyncio.run(scenario())


def test_lying_dying_and_silent_donors_hold_nobody_up(tmp_path):
    async def scenario():
        async with swarm(tmp_path, 4) as ((joiner, *donors), (liar, dying, silent, _good), (outer, momentum, root)):
            await _lie(liar)

            async def die():
                os.kill(donors[1].p2p._child.pid, signal.SIGKILL)

            dying._server._endpoint.pace = CountingPace(after_bytes=1 << 19, do=die)
            silent._server._endpoint.pace = CountingPace(after_bytes=1 << 19, do=asyncio.Event().wait)
            target = _empty()
            await _fetch(joiner, root, [donor.me for donor in donors], target)
            assert torch.equal(target[0], outer)
            assert torch.equal(target[1], momentum)

    asyncio.run(scenario())


def test_when_no_donor_is_left_every_reason_is_shown(tmp_path):
    async def scenario():
        async with swarm(tmp_path, 3) as ((joiner, *donors), (liar, forgetful, torn), (_, _, root)):
            await _lie(liar)
            forgetful.withdraw(INSTANCE)
            torn._offers[INSTANCE][ROUND]._tensors[0].add_(1.0)  # before its index was computed
            with pytest.raises(StateTransferFailed) as caught:
                await _fetch(joiner, root, [donor.me for donor in donors], _empty())
            text = str(caught.value)
            assert "0 of 6 chunks" in text
            for donor, words in zip(donors, ("not what the root promises", "not held here", "not held here"), strict=True):
                assert words in next(line for line in text.splitlines() if donor.me in line)
            with pytest.raises(StateTransferFailed, match="nobody is known"):
                await _fetch(joiner, root, [], _empty())

    asyncio.run(scenario())


def test_another_root_or_size_is_not_served_nor_is_an_old_round(tmp_path):
    async def scenario():
        async with swarm(tmp_path, 1) as ((joiner, donor), (server,), (outer, momentum, root)):
            with pytest.raises(StateTransferFailed, match="not held here"):
                await _fetch(joiner, Digest("00" * 32), [donor.me], _empty())
            with pytest.raises(StateTransferFailed, match="offers"):
                await _fetch(joiner, root, [donor.me], (torch.zeros(5), torch.zeros(5)))
            later_root = state_digest(momentum, outer)
            server.offer(INSTANCE, ROUND + 1, later_root, momentum, outer)
            server.offer(INSTANCE, ROUND + 2, state_digest(outer, outer), outer, outer)
            with pytest.raises(StateTransferFailed, match="not held here"):
                await _fetch(joiner, root, [donor.me], _empty())
            await _fetch(joiner, later_root, [donor.me], _empty(), round_number=ROUND + 1)

    asyncio.run(scenario())


def test_what_was_taken_whole_is_noted_for_every_instance_with_that_state(tmp_path):
    async def scenario():
        async with swarm(tmp_path, 1) as ((joiner, donor), (server,), (outer, momentum, root)):
            server.offer(INSTANCE + 1, ROUND, root, outer, momentum)
            server.offer(INSTANCE + 2, ROUND, state_digest(momentum, outer), momentum, outer)
            noted, is_noted = [], asyncio.Event()

            def note(*served):
                noted.append(served)
                is_noted.set()

            server.on_served = note
            await _fetch(joiner, root, [donor.me], _empty())
            await is_noted.wait()
            assert noted == [(INSTANCE, ROUND, joiner.me), (INSTANCE + 1, ROUND, joiner.me)]

    asyncio.run(scenario())


@pytest.mark.parametrize("is_member", [True, False])
def test_a_member_that_took_a_part_elsewhere_counts_as_served(tmp_path, is_member):
    """A stranger could say so at no cost."""

    async def scenario():
        async with swarm(tmp_path, 1) as ((joiner, donor), (server,), (outer, _, root)):
            server._server._endpoint.members = lambda: {donor.me} | ({joiner.me} if is_member else set())
            noted = []
            server.on_served = lambda *served: noted.append(served)
            target = outer.clone(), torch.zeros(NUM_PARAMETERS)  # as other joiners have passed it on
            await _fetch(joiner, root, [donor.me], target)
            assert server._server._endpoint.pace.num_bytes == 4 * NUM_PARAMETERS
            await until(lambda: server._server.num_served_now == 0)
            assert noted == [(INSTANCE, ROUND, joiner.me)] * is_member

    asyncio.run(scenario())


async def _half_download() -> tuple[Download, dict[int, bytes]]:
    """Of a state: the outer parameters are here."""
    outer, momentum, root = _state()
    chunks = state_chunks(outer.clone(), torch.zeros(NUM_PARAMETERS))
    download = Download(root, lambda _: chunks, max_chunks=NUM_CHUNKS, may_hold_chunks=True)
    await download.begin(state_index(outer, momentum))
    assert download.num_verified == NUM_CHUNKS // 2
    return download, dict(enumerate(_chunks(outer, momentum)))


def test_a_download_is_passed_on_while_another_one_of_that_root_ends():
    """Two instances share a state, as after a fork."""

    async def scenario():
        server = StateServer(Endpoint(SimpleNamespace(peer_id="us")))
        lasting, _ = await _half_download()
        ending, _ = await _half_download()
        with server.passing_on(lasting):
            with server.passing_on(ending):
                pass
            found = await server._find(lasting.root)
            assert found is not None and found.source is lasting
        assert await server._find(lasting.root) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("comes_whole", [True, False])
def test_what_is_passed_on_ends_with_a_download_that_fails(tmp_path, comes_whole):
    """Its tensors may be filled with another state."""

    async def scenario():
        async with started_hosts(tmp_path, 2) as (joiner, passing):
            server = StateServer(Endpoint(passing.p2p))
            await server.start()
            download, chunks = await _half_download()
            with server.passing_on(download):
                stream = await open_stream(joiner.p2p, passing.me, handler_name(KIND), timeout_seconds=PATIENCE_SECONDS)
                stream.send(FrameKind.HELLO, bytes.fromhex(download.root))
                await stream.receive(FrameKind.HELLO_REPLY)
                (serving,) = server._server._downloads
                while comes_whole and (chunk := download.take(passing.me, chunks, num_owed=0, num_donors=1)) is not None:
                    download.put(passing.me, chunk, chunks[chunk])
            assert serving.is_lost == (not comes_whole)
            stream.abort()
            await server.stop()

    asyncio.run(scenario())


def test_an_instance_hosted_no_longer_is_served_for_two_more_boundaries_of_others(tmp_path):
    async def scenario():
        async with swarm(tmp_path, 1) as ((joiner, donor), (server,), (outer, momentum, root)):
            other = InstanceId(INSTANCE + 1)
            server.retire(other)  # it never was here
            server.retire(INSTANCE)
            other_root = state_digest(momentum, outer)
            for later in (ROUND, ROUND + 1):
                server.offer(other, later, other_root, momentum, outer)
                await _fetch(joiner, root, [donor.me], _empty())
            server.offer(other, ROUND + 2, other_root, momentum, outer)
            with pytest.raises(StateTransferFailed, match="not held here"):
                await _fetch(joiner, root, [donor.me], _empty())

    asyncio.run(scenario())


def test_after_a_change_of_history_lower_rounds_are_served(tmp_path):
    async def scenario():
        async with swarm(tmp_path, 1) as ((joiner, donor), (server,), (outer, momentum, root)):
            server.withdraw(INSTANCE)
            for number in (ROUND + 5, ROUND + 6):
                server.offer(INSTANCE, number, state_digest(momentum, outer), momentum, outer)
            server.offer(INSTANCE, ROUND, root, outer, momentum)
            await _fetch(joiner, root, [donor.me], _empty())

    asyncio.run(scenario())


def test_a_broken_transfer_goes_on_where_it_was(tmp_path):
    async def scenario():
        async with swarm(tmp_path, 2) as ((joiner, first, second), (dying, good), (outer, momentum, root)):

            async def die():
                await until(lambda: any(bool(part.any()) for part in target))  # a chunk is in its place, whichever came first
                os.kill(first.p2p._child.pid, signal.SIGKILL)

            dying._server._endpoint.pace = CountingPace(after_bytes=4 << 20, do=die)
            target = _empty()
            with pytest.raises(StateTransferFailed):
                await _fetch(joiner, root, [first.me], target)
            chunks = zip(_chunks(*target), _chunks(outer, momentum), strict=True)
            missing = [len(wanted) for chunk, wanted in chunks if chunk != wanted]
            assert 0 < len(missing) < NUM_CHUNKS
            await _fetch(joiner, root, [second.me], target)
            assert torch.equal(target[0], outer)
            assert torch.equal(target[1], momentum)
            assert good._server._endpoint.pace.num_bytes == sum(missing)

    asyncio.run(scenario())


def _chunks(outer, momentum):
    return [bytes(chunk) for chunk in state_chunks(outer, momentum)]


def noted_refusals(monkeypatch):
    """What busy donors answer from now on."""
    refusals: asyncio.Queue[str] = asyncio.Queue()
    ask = ChunkFetcher._ask

    async def noting(self, donor, fetch):
        is_worth_another_try = await ask(self, donor, fetch)
        if is_worth_another_try:
            await refusals.put(fetch.problems[donor])
        return is_worth_another_try

    monkeypatch.setattr(ChunkFetcher, "_ask", noting)
    return refusals


def test_a_busy_donor_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_fetcher, "PAUSE_SECONDS", 0.05)

    async def scenario():
        async with swarm(tmp_path, 2) as ((one, two, donor), (_, server), (outer, _, root)):
            server._server._max_downloads = 1
            is_serving, may_go_on = asyncio.Event(), asyncio.Event()
            refusals = noted_refusals(monkeypatch)

            async def hold():
                is_serving.set()
                await may_go_on.wait()

            server._server._endpoint.pace = CountingPace(after_bytes=1, do=hold)
            first_target, second_target = _empty(), _empty()
            first = asyncio.create_task(_fetch(one, root, [donor.me], first_target))
            await is_serving.wait()
            second = asyncio.create_task(_fetch(two, root, [donor.me], second_target))
            assert await refusals.get() == "busy with 1 downloads"
            may_go_on.set()
            await asyncio.gather(first, second)
            assert torch.equal(first_target[0], outer)
            assert torch.equal(second_target[0], outer)

    asyncio.run(scenario())


def test_a_download_of_a_stranger_yields_to_a_member(tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_fetcher, "PAUSE_SECONDS", 0.05)

    async def scenario():
        async with swarm(tmp_path, 2) as ((stranger, member, donor), (_, server), (outer, _, root)):
            server._server._endpoint.members = lambda: {donor.me, member.me}
            server._server._max_downloads = 1
            is_serving, may_go_on = asyncio.Event(), asyncio.Event()

            async def hold():
                is_serving.set()
                await may_go_on.wait()

            server._server._endpoint.pace = CountingPace(after_bytes=1, do=hold)
            idle_target, target = _empty(), _empty()
            idle = asyncio.create_task(_fetch(stranger, root, [donor.me], idle_target))
            await is_serving.wait()
            await _fetch(member, root, [donor.me], target)
            assert torch.equal(target[0], outer)
            may_go_on.set()
            await idle  # and then the stranger has its turn
            assert torch.equal(idle_target[0], outer)

    asyncio.run(scenario())


def test_streams_without_a_request_are_counted_and_dropped(tmp_path):
    async def scenario():
        async with swarm(tmp_path, 1) as ((stranger, donor), (server,), _):
            streams = [
                await stranger.p2p.call_binary_stream_handler(donor.p2p.peer_id, handler_name(KIND))
                for _ in range(chunk_server.MAX_REQUESTS_PER_PEER + 1)
            ]
            readers = [asyncio.create_task(reader.read()) for _, reader, _ in streams]
            first, others = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
            assert (len(first), len(others)) == (1, chunk_server.MAX_REQUESTS_PER_PEER)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, Clock)
            loop.ahead_seconds += chunk_server.REQUEST_SECONDS
            await asyncio.gather(*others)
            assert not server._server._requests.taken
            for _, _, writer in streams:
                writer.close()

    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(scenario())


def test_uploads_keep_to_the_cap(tmp_path):
    async def scenario():
        async with swarm(tmp_path, 1) as ((joiner, donor), (server,), (_, _, root)):
            rate = 8.0 * (1 << 20)
            server._server._endpoint.pace = RateLimiter(Traffic(), up_bytes_per_second=int(rate))
            started = time.monotonic()
            await _fetch(joiner, root, [donor.me], _empty())
            assert time.monotonic() - started >= OVERHEAD * (8 * NUM_PARAMETERS - (1 << 20)) / rate - 0.01

    asyncio.run(scenario())
