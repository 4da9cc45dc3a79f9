"""Donors that have no place: how often and for how long they are asked."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.swarm.transfer import chunk_fetcher
from adloco_p2p.swarm.transfer.chunk_fetcher import PAUSE_SECONDS, ChunkFetcher, _Busy, _Fetch
from adloco_p2p.swarm.transfer.chunk_server import TURN_SECONDS
from adloco_p2p.swarm.transfer.download import Download
from adloco_p2p.swarm.transfer.state_transfer import MAX_REFUSALS, StateFetcher
from adloco_p2p.swarm.transport.framed_stream import StreamLost
from tests.swarm.patience import PATIENCE_SECONDS

DONORS = [PeerId("one"), PeerId("other")]


def download() -> Download:
    return Download(Digest("0" * 64), lambda _: [], max_chunks=1)


class Refused(ChunkFetcher):
    """By every donor."""

    def __init__(self, **options: Any) -> None:
        super().__init__(SimpleNamespace(), "state", **options)  # type: ignore[arg-type]
        self.asked: Counter[PeerId] = Counter()

    async def _fetch_from(self, donor: PeerId, fetch: _Fetch) -> None:
        self.asked[donor] += 1
        raise _Busy("busy with 4 downloads")


def pauses(fetcher: ChunkFetcher, count: int) -> list[float | None]:
    fetch = _Fetch(download(), PATIENCE_SECONDS)

    async def scenario() -> list[float | None]:
        return [await fetcher._ask(DONORS[0], fetch) for _ in range(count)]

    return asyncio.run(scenario())


def test_a_busy_donor_is_asked_again_after_longer_and_longer_pauses() -> None:
    assert pauses(Refused(), 2000) == [0.5, 1.0, 2.0, 4.0, *[8.0] * 1996]


def test_a_fetch_of_a_state_outlasts_the_turn_of_a_member_and_then_asks_a_busy_donor_no_more() -> None:
    fetcher = StateFetcher(SimpleNamespace(), SimpleNamespace())._fetcher  # type: ignore[arg-type]
    seconds = pauses(Refused(max_refusals=fetcher._max_refusals), MAX_REFUSALS)
    assert seconds[-1] is None
    assert TURN_SECONDS < sum(pause for pause in seconds if pause) < 2 * TURN_SECONDS


def test_a_donor_that_gave_a_place_meanwhile_is_asked_soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sent then may be broken off, as where another fetcher had a turn: only refusals in a row count."""
    answers: list[Exception | bytes] = [*[_Busy("busy")] * 3, b"an index", *[_Busy("busy")] * 4]

    async def introduce(*_: object) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def begin(*_: object) -> None:
        raise StreamLost("broken off")

    async def open_stream(*_: object, **__: object) -> Any:
        return SimpleNamespace(abort=lambda: None, bytes_sent=0, bytes_received=0)

    monkeypatch.setattr(chunk_fetcher, "_introduce", introduce)
    monkeypatch.setattr(Download, "begin", begin)
    fetcher = ChunkFetcher(SimpleNamespace(open_stream=open_stream), "state", max_refusals=4)  # type: ignore[arg-type]
    assert pauses(fetcher, 8) == [0.5, 1.0, 2.0, PAUSE_SECONDS, 0.5, 1.0, 2.0, None]


def test_where_all_donors_stay_busy_the_fetch_fails_long_before_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that have got the state meanwhile are asked by the next fetch only."""
    monkeypatch.setattr(chunk_fetcher, "PAUSE_SECONDS", 0.0)

    async def scenario() -> None:
        fetcher = Refused(max_refusals=3)
        problems = await asyncio.wait_for(fetcher.fetch(download(), DONORS, timeout_seconds=1e9), PATIENCE_SECONDS)
        assert problems == dict.fromkeys(DONORS, "busy with 4 downloads")
        assert fetcher.asked == dict.fromkeys(DONORS, 3)

    asyncio.run(scenario())
