"""Of which peer a peer that is far behind asks entries: of one at a time.

Entries of a large run are long. The same ones from several donors fill a slow link, until no new ones come through. So a donor
is asked when the answer of the one before is there, or was awaited for long enough.
"""

from collections.abc import Collection, Container
from math import inf
from typing import TypeVar

from adloco_p2p.core.model.ledger_entry import Head
from adloco_p2p.core.model.scalars import MAX_ROSTER, Digest, PeerId

MAX_REMEMBERED = 2 * MAX_ROSTER
"""Peers of which something is known; the oldest are forgotten."""
NEAR_ROUNDS = 1
"""A ledger that is at most so many rounds behind pulls from several at once: a lost answer would delay votes, ..."""
NEAR_PULLS_PER_PERIOD = 2
"""... but not from all: so often in a period of gossip for one end, which all honest peers name."""
REST_PERIODS = 1.1
"""A donor is asked again after so many periods: it answers one question in each of its own."""
PATIENCE_SECONDS, MAX_PATIENCE_SECONDS = 2.0, 20.0
"""How long an answer is awaited, at first and at most: longer each time, since the own link may be slow."""

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


class EntryDonors:
    """The ends of others' ledgers and how fast these peers answered. Instants are seconds of the peer's own clock."""

    def __init__(self, *, period_seconds: float) -> None:
        """`period_seconds`: of gossip."""
        self._period_seconds = period_seconds
        self.ends: dict[PeerId, Head] = {}
        """Of longer and of other histories, as their holders named them; the latest at the end."""
        self._asked: dict[PeerId, float] = {}
        """When each was asked last, ..."""
        self._unanswered: dict[PeerId, float] = {}
        """... and that again until an answer is there, however late."""
        self._took: dict[PeerId, float] = {}
        """Seconds that the last answer of a donor took; infinite where it did not come, or was of no use."""
        self._near: dict[Digest, float] = {}
        """Ends that are near, and when they were pulled last."""
        self._under_way: tuple[PeerId, float] | None = None
        """Who was asked, and when."""
        self._patience = PATIENCE_SECONDS
        self._has_failed = False
        """Whether the answer that was awaited last did not come, or was of no use."""

    @property
    def furthest_round(self) -> int:
        """To which any of them reaches."""
        return max((head.round for head in self.ends.values()), default=0)

    def note_end(self, peer: PeerId, head: Head) -> None:
        remember(self.ends, peer, head)

    def choose(self, have: Head, known: Container[Digest], *, without: Collection[PeerId], now: float) -> PeerId | None:
        """The peer to ask now; none while an answer is awaited, or where nobody is far ahead of what is here and rested.

        It is the one whose last answer took the least time. One that was never asked comes before those that took more than a
        period, but not after one that failed: so new names, of which there may be any number, take every second turn at most.
        `known`: plans of the own ledger."""
        if self._under_way is not None:
            donor, asked_at = self._under_way
            if now - asked_at < self._patience:
                return None
            self._patience = min(2 * self._patience, MAX_PATIENCE_SECONDS)
            self._end_turn(donor, inf)
        rested = [
            peer
            for peer, head in self.ends.items()
            if is_far(head.round - have.round)
            and now - self._asked.get(peer, -inf) >= REST_PERIODS * self._period_seconds
            and head.digest not in known
            and peer not in without
        ]
        if not rested:
            return None
        unasked = self._patience if self._has_failed else self._period_seconds
        chosen = min(rested, key=lambda peer: (self._took.get(peer, unasked), self._asked.get(peer, -inf)))
        remember(self._asked, chosen, now)
        remember(self._unanswered, chosen, now)
        self._under_way = chosen, now
        return chosen

    def takes_near(self, end: Digest, now: float) -> bool:
        """A peer names an end that is near. Whether to pull from it, which counts as done."""
        if now - self._near.get(end, -inf) < self._period_seconds / NEAR_PULLS_PER_PERIOD:
            return False
        remember(self._near, end, now)
        return True

    def note_answer(self, peer: PeerId, now: float, *, is_of_use: bool) -> None:
        """Entries of the peer came, late ones and unasked ones among them."""
        asked_at = self._unanswered.pop(peer, None)
        if asked_at is None:
            return
        if is_of_use:
            self._patience = min(max(PATIENCE_SECONDS, 2 * (now - asked_at)), MAX_PATIENCE_SECONDS)
        self._end_turn(peer, now - asked_at if is_of_use else inf)

    def _end_turn(self, peer: PeerId, took: float) -> None:
        remember(self._took, peer, took)
        if self._under_way is not None and self._under_way[0] == peer:
            self._under_way, self._has_failed = None, took == inf


def is_far(num_rounds: int) -> bool:
    """Whether a ledger is so many rounds ahead of another one that the owner of that asks one donor at a time."""
    return num_rounds > NEAR_ROUNDS


def remember(known: dict[_Key, _Item], key: _Key, item: _Item) -> None:
    """As the latest of at most MAX_REMEMBERED."""
    known.pop(key, None)
    known[key] = item
    if len(known) > MAX_REMEMBERED:
        known.pop(next(iter(known)))
