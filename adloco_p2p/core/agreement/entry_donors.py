"""The choice of the donor from which a peer that is far behind pulls entries: one at a time, and a second one if it is silent.

Entries of a large run are long, and the same ones from several donors would fill a slow link until no new ones get through. So
the next donor is asked only when the answer of the one before has come, or was awaited for long enough.
"""

from collections.abc import Collection, Container
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from adloco_p2p.core.model.ledger_entry import Head
from adloco_p2p.core.model.scalars import MAX_ROSTER, Digest, PeerId

MAX_REMEMBERED = 2 * MAX_ROSTER
"""The number of peers that are remembered; the oldest are forgotten."""
NEAR_ROUNDS = 1
"""A peer at most this many rounds behind pulls from several donors at once, because a lost answer would delay votes."""
NEAR_PULLS_PER_PERIOD = 2
"""The number of near pulls per period of gossip for one head, which all honest peers name: from members, and from strangers."""
SILENT_PERIODS = 3
"""The number of periods for which a peer whose last near pull brought nothing gets no other one."""
REST_PERIODS = 1.1
"""The number of periods after which a donor is asked again: it answers one question in each period of its own."""
HEARD_PERIODS = 10
"""The number of periods, about a lease, within which a donor must have been heard."""
MAX_UNDER_WAY = 2
"""The largest number of questions whose answers are awaited."""
FIRST_PATIENCE_SECONDS, MIN_PATIENCE_SECONDS, MAX_PATIENCE_SECONDS = 1.0, 0.5, 20.0
"""How long an answer is awaited before a second donor is asked: twice what the last whole answer took, within these bounds.
Neither silence nor a short answer changes it, so that silent and trickling names cannot."""
GIVEN_UP_AFTER = 4
"""The multiple of the patience after which a question is no longer under way."""
MIN_GIVEN_UP_SECONDS = 8.0
"""The shortest time after which a question is given up, because all answers take longer on a link that has become slow. The
longest is MAX_PATIENCE_SECONDS."""
WHOLE_SHARE = 0.5
"""The share of a message's limit from which an answer counts as whole. An honest answer fills the message, and rarely has
less."""

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


@dataclass
class _Donor:
    """A peer from which entries may be pulled. Instants are seconds of the peer's own clock."""

    end: Head
    """The head of the donor's ledger, as it named it last."""
    heard_at: float
    """When the donor last named its head or sent a useful answer."""
    asked_at: float = -inf
    is_awaited: bool = False
    """Whether no answer, however late, has come since `asked_at`."""
    took: float | None = None
    """The seconds that a whole answer takes at the pace of the last one; infinite if that was of no use, None before any."""
    near_at: float = -inf
    """When the last near pull from the donor was made; reset by a useful answer."""

    @property
    def seconds(self) -> float | None:
        """The seconds that an answer takes; infinite while the last one is still to come."""
        return inf if self.is_awaited else self.took


class EntryDonors:
    """The heads of others' ledgers, and how fast these peers answered."""

    def __init__(self, *, period_seconds: float) -> None:
        """`period_seconds` is the period of gossip."""
        self._period_seconds = period_seconds
        self._donors: dict[PeerId, _Donor] = {}
        """Holders of longer and of other histories, the most recently heard last."""
        self._near: dict[tuple[Digest, bool], float] = {}
        """When the last near pull was made, by head and by whether it was from a member."""
        self._under_way: tuple[PeerId, ...] = ()
        """The peers that were asked last, among them all whose answers are awaited."""
        self._patience = FIRST_PATIENCE_SECONDS
        self._is_members_turn = True

    @property
    def furthest_round(self) -> int:
        """The highest round that any of the ledgers reaches."""
        return max((donor.end.round for donor in self._donors.values()), default=0)

    def end_of(self, peer: PeerId) -> Head | None:
        """Return the head that the peer named last."""
        donor = self._donors.get(peer)
        return donor.end if donor is not None else None

    def note_end(self, peer: PeerId, head: Head, now: float) -> None:
        """Note the head that the peer has just named."""
        donor = self._donors.get(peer) or _Donor(end=head, heard_at=now)
        donor.end, donor.heard_at = head, now
        remember(self._donors, peer, donor)

    def choose(
        self, have: Head, known: Container[Digest], *, roster: Collection[PeerId], without: Collection[PeerId], now: float
    ) -> PeerId | None:
        """Return the peer to ask now; None while an answer is awaited, or if no rested donor is far ahead of `have`.

        It is the one whose last answer took the least time for what it brought. One that was never asked counts as if it took a
        period, the most recently heard first. Since there may be any number of new names, they get at most every second turn,
        and none while one of them is awaited, if a peer of `roster`, that of the newest plan here, can be asked. `known` has
        the plans of the own ledger."""
        given_up = now - min(max(GIVEN_UP_AFTER * self._patience, MIN_GIVEN_UP_SECONDS), MAX_PATIENCE_SECONDS)
        asked = {peer: self._donors[peer] for peer in self._under_way if peer in self._donors}
        awaited = [peer for peer, donor in asked.items() if donor.is_awaited and donor.asked_at > given_up]
        asked_at = max((asked[peer].asked_at for peer in awaited), default=-inf)
        if len(awaited) >= MAX_UNDER_WAY or now - asked_at < self._patience:
            return None
        able = {
            peer: donor
            for peer, donor in self._donors.items()
            if is_far(donor.end.round - have.round)
            and self._is_there(donor, now)
            and donor.end.digest not in known
            and peer not in without
            and peer not in awaited
        }
        members = frozenset(roster) if able else frozenset()
        is_members_turn = self._is_members_turn or not members.issuperset(awaited)
        in_turn = {peer: donor for peer, donor in able.items() if peer in members} if is_members_turn else {}
        resting = now - REST_PERIODS * self._period_seconds
        rested = [(peer, donor) for peer, donor in (in_turn or able).items() if donor.asked_at <= resting]
        if not rested:
            return None
        chosen, donor = min(rested, key=lambda item: self._order(item[1]))
        donor.asked_at, donor.is_awaited = now, True
        self._under_way = (*awaited, chosen)
        self._is_members_turn = chosen not in members
        return chosen

    def _is_there(self, donor: _Donor, now: float) -> bool:
        """Return whether the donor was heard lately, and after the last question that it has not answered."""
        is_silent = donor.is_awaited and donor.heard_at <= donor.asked_at
        return not is_silent and now - donor.heard_at <= HEARD_PERIODS * self._period_seconds

    def _order(self, donor: _Donor) -> tuple[float, float, float]:
        seconds = donor.seconds
        return (self._period_seconds if seconds is None else seconds), donor.asked_at, -donor.heard_at

    def takes_near(self, peer: PeerId, *, roster: Container[PeerId], now: float) -> bool:
        """Return whether to pull from a peer that named a near head, and count the pull as made. Members share turns of their
        own, and a silent peer is passed over for a while."""
        donor, period = self._donors[peer], self._period_seconds
        turn = donor.end.digest, peer in roster
        is_silent = now - donor.near_at < SILENT_PERIODS * period
        if is_silent or now - self._near.get(turn, -inf) < period / NEAR_PULLS_PER_PERIOD:
            return False
        donor.near_at = now
        remember(self._near, turn, now)
        return True

    def note_answer(self, peer: PeerId, now: float, *, share: float) -> None:
        """Note entries from the peer, even late or unasked ones. `share` is the part of a whole answer that was new here, in
        (0, 1], or 0 if it was of no use."""
        donor = self._donors.get(peer)
        if donor is None:
            return
        took = now - donor.asked_at
        if share:
            donor.heard_at, donor.near_at = now, -inf
        if donor.is_awaited:
            donor.is_awaited, donor.took = False, took / share if share else inf
            if share >= WHOLE_SHARE:
                self._patience = min(max(MIN_PATIENCE_SECONDS, 2 * took), MAX_PATIENCE_SECONDS)


def is_far(num_rounds: int) -> bool:
    """Return whether a peer that is `num_rounds` behind asks one donor at a time."""
    return num_rounds > NEAR_ROUNDS


def remember(known: dict[_Key, _Item], key: _Key, item: _Item) -> None:
    """Store the item as the latest of at most MAX_REMEMBERED, and forget the oldest beyond that."""
    known.pop(key, None)
    known[key] = item
    if len(known) > MAX_REMEMBERED:
        known.pop(next(iter(known)))
