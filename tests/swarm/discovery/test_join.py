"""Which of the announced peers are remembered for the next start."""

import asyncio
from collections.abc import Iterable, Mapping

from adloco_p2p.core.model.types import Digest, PeerId
from adloco_p2p.swarm.discovery.join import connect_to_run
from adloco_p2p.swarm.discovery.run_records import PeerRecord

RUN = Digest("ab" * 32)
KNOWN, ANSWERS, SILENT = PeerId("known"), PeerId("answers"), PeerId("silent")
ADDRESSES = {peer: f"/ip4/192.0.2.{place}/tcp/1/p2p/{peer}" for place, peer in enumerate((KNOWN, ANSWERS, SILENT), 1)}


class Announced:
    """A discovery in which three peers are announced."""

    async def find_peers(self, run: Digest) -> list[PeerRecord]:
        return [
            PeerRecord(run=run, peer=peer, addresses=(ADDRESSES[peer],), protocol=1, expiration=1.0)
            for peer in (KNOWN, ANSWERS, SILENT)
        ]


class Dialling:
    """A node that is connected with one of them, and reaches one of the other two."""

    def __init__(self) -> None:
        self.book: list[str] = []

    async def addresses(self) -> tuple[str, ...]:
        return ()

    async def peers_connected(self) -> tuple[PeerId, ...]:
        return (KNOWN,)

    async def connect(self, addresses: Iterable[str], *, should_retry: bool) -> Mapping[PeerId, str | None]:
        assert list(addresses) == [ADDRESSES[ANSWERS], ADDRESSES[SILENT]] and not should_retry
        return {ANSWERS: None, SILENT: "no answer"}

    def remember(self, addresses: Iterable[str]) -> None:
        self.book += addresses


def test_only_peers_that_were_reached_are_remembered() -> None:
    node = Dialling()
    known = asyncio.run(connect_to_run(node, Announced(), RUN, should_retry=False))  # type: ignore[arg-type]
    assert known.connected == (ANSWERS, KNOWN) and known.unreached == {SILENT: "no answer"}
    assert node.book == [ADDRESSES[KNOWN], ADDRESSES[ANSWERS]]
