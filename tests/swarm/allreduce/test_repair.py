"""Fetching an average from donors that lie, are slow, or die half-way."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from adloco_p2p.errors import AveragingError
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.swarm.allreduce.averager import Averaged
from adloco_p2p.swarm.allreduce.repair import Fetch, _Room
from adloco_p2p.swarm.transport.framed_stream import FramedStream, StreamLost
from tests.swarm.averaging_peers import Peers, key_of, vectors_of

SIZE = 100_000


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    with Peers(3) as started:
        yield started


def repair(peers: Peers, name: str, result: Averaged, *donors: int, vector: object = None) -> Averaged:
    """By the first peer, which has lost it."""
    return peers.run(
        peers[0].averager.repair(
            key=key_of(name),
            digest=result.digest,
            from_peers=tuple(peers[donor].peer_id for donor in donors),
            size=SIZE,
            timeout_seconds=20,
            vector=vector,  # type: ignore[arg-type]
            contributors=result.contributors,
        )
    )


def averaged(peers: Peers, name: str) -> Averaged:
    results = peers.average(name, vectors_of(3, SIZE, seed=len(name)), (1, 2, 3))
    peers[0].averager.forget(key_of(name))
    assert isinstance(results[0], Averaged)
    return results[0]


def test_a_donor_that_cuts_the_parts_wrongly_spoils_nobody_elses(peers: Peers) -> None:
    """The hashes of its table are the true ones, the lengths are not."""
    result = averaged(peers, "lied about")
    store = peers[1].averager._results
    held = store.find(result.digest)
    assert held is not None
    (first, one), (second, two), *others = held.parts
    store._results[key_of("lied about")] = replace(held, parts=((first + 4, one), (second - 4, two), *others))
    with pytest.raises(AveragingError) as failed:
        repair(peers, "lied about", result, 1)
    assert failed.value.suspects == (peers[1].peer_id,)
    assert repair(peers, "lied about", result, 1, 2).digest == result.digest  # its table came first


def test_a_second_try_fetches_what_the_first_one_lacks(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    result = averaged(peers, "interrupted")
    whole, num_filled = Fetch._filled, 0

    async def lost_half_way(self: Fetch, stream: FramedStream, room: _Room) -> int:
        nonlocal num_filled
        num_filled += 1
        if num_filled > 5:
            raise StreamLost("the line broke")
        return await whole(self, stream, room)

    with monkeypatch.context() as patched:
        patched.setattr(Fetch, "_filled", lost_half_way)
        with pytest.raises(AveragingError, match="the line broke"):
            repair(peers, "interrupted", result, 1)
    held = peers[1].averager._results.find(result.digest)
    assert held is not None
    kept = sum(num_bytes for num_bytes, _ in held.parts[:5])
    again = repair(peers, "interrupted", result, 1)
    assert again.digest == result.digest
    assert again.bytes_received == pytest.approx(4 * SIZE - kept, rel=0.02) and kept > 0.05 * 4 * SIZE


def test_statistics_are_this_peers_own_or_none(peers: Peers) -> None:
    result = averaged(peers, "mine")
    assert repair(peers, "mine", result, 1, 2).statistics is None
    peers[0].averager.forget(key_of("mine"))
    restored = repair(peers, "mine", result, 1, 2, vector=vectors_of(3, SIZE, seed=len("mine"))[0]).statistics
    assert restored is not None and result.statistics is not None
    assert restored.own_sqnorm == pytest.approx(result.statistics.own_sqnorm, rel=1e-12)


class _Line:
    """A stream, as far as `_filled` looks at it."""

    bytes_received = 0


def test_a_slow_line_is_no_silence() -> None:
    """Bytes trickle in for several times as long as a donor may be silent; then nothing comes any more."""
    fetch = Fetch(key_of("slow"), codec=codec_named("float32"), size=8, stall_seconds=0.1)

    async def scenario() -> None:
        line, room = _Line(), _Room()

        async def trickle() -> None:
            for _ in range(20):
                await asyncio.sleep(0.02)
                line.bytes_received += 1
            room.filled.put_nowait(7)

        task = asyncio.create_task(trickle())
        assert await fetch._filled(line, room) == 7  # type: ignore[arg-type]
        await task
        with pytest.raises(TimeoutError):
            await fetch._filled(line, room)  # type: ignore[arg-type]

    asyncio.run(scenario())
