"""Cards that present the members to people: name, version and reachability, as each announces them, and the round trip."""

import math
import time
from collections.abc import Callable, Collection, Sequence

from hivemind.p2p import P2P

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import PeerCard
from adloco_p2p.swarm.discovery.reachability import ping_all
from adloco_p2p.swarm.p2p.dht_records import PeerRecord

LOOK_SECONDS = 60.0
"""The least time between two looks at one peer, so that one that keeps changing its name does not fill the event file."""
MAX_LOOKS = 8
"""Peers whose round trip is measured at one look, those of the longest time ago."""
CHANGE_RATIO = 1.5
"""A round trip that changes by a smaller factor is not written again."""


class PeerCards:
    """Writes the card of a peer whenever it has changed."""

    def __init__(self, p2p: P2P, write: Callable[[PeerCard], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._p2p = p2p
        self._write = write
        self._clock = clock
        self._cards: dict[PeerId, PeerCard] = {}
        self._looked_at: dict[PeerId, float] = {}

    async def look(self, records: Sequence[PeerRecord], connected: Collection[PeerId]) -> None:
        """Write the cards that have changed. `records` are those of members only, because names of strangers are not shown."""
        now = self._clock()
        known = {record.peer for record in records}
        self._cards = {peer: card for peer, card in self._cards.items() if peer in known}
        self._looked_at = {peer: looked for peer, looked in self._looked_at.items() if peer in known}
        due = sorted(records, key=lambda record: self._looked_at.get(record.peer, -math.inf))[:MAX_LOOKS]
        due = [record for record in due if now - self._looked_at.get(record.peer, -math.inf) >= LOOK_SECONDS]
        answers = await ping_all(self._p2p, [record.peer for record in due if record.peer in connected])
        for record in due:
            self._looked_at[record.peer] = now
            answer = answers.get(record.peer)
            self._show(card_of(record, None if answer is None else answer.round_trip_seconds))

    def _show(self, card: PeerCard) -> None:
        before = self._cards.get(card.peer)
        if before is None or _differs(before, card):
            self._cards[card.peer] = card
            self._write(card)


def card_of(record: PeerRecord, round_trip_seconds: float | None) -> PeerCard:
    direct = [address for address in record.addresses if "/p2p-circuit" not in address]
    return PeerCard(
        peer=record.peer,
        nickname=record.nickname,
        version=record.version,
        reach="direct" if direct else "relay" if record.addresses else "client",
        round_trip_seconds=None if round_trip_seconds is None else round(round_trip_seconds, 4),
    )


def _differs(before: PeerCard, after: PeerCard) -> bool:
    old, new = before.round_trip_seconds, after.round_trip_seconds
    if (before.nickname, before.version, before.reach) != (after.nickname, after.version, after.reach):
        return True
    if old is None or new is None:
        return old is not new
    return max(old, new) > CHANGE_RATIO * min(old, new)
