"""Of which peer a peer that is far behind asks entries: of one at a time, and of a second one where the first is silent.

Entries of a large run are long. The same ones from several donors fill a slow link, until no new ones come through. So a donor
is asked when the answer of the one before is there, or was awaited for long enough.
"""

from collections.abc import Collection, Container
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from adloco_p2p.core.model.ledger_entry import Head
from adloco_p2p.core.model.scalars import MAX_ROSTER, Digest, PeerId

MAX_REMEMBERED = 2 * MAX_ROSTER
"""Peers of which something is known; the oldest are forgotten."""
NEAR_ROUNDS = 1
"""A ledger that is at most so many rounds behind pulls from several at once: a lost answer would delay votes, ..."""
NEAR_PULLS_PER_PERIOD = 2
"""... but not from all: so often in a period of gossip for one end, which all honest peers name, from members and
from strangers each."""
SILENT_PERIODS = 3
"""A peer whose last near pull brought nothing is not pulled so again for so many periods."""
REST_PERIODS = 1.1
"""A donor is asked again after so many periods: it answers one question in each of its own."""
HEARD_PERIODS = 10
"""A donor was heard within so many periods: about a lease."""
MAX_UNDER_WAY = 2
"""Questions whose answers are awaited."""
FIRST_PATIENCE_SECONDS, MIN_PATIENCE_SECONDS, MAX_PATIENCE_SECONDS = 1.0, 0.5, 20.0
"""How long an answer is awaited before a second donor is asked: twice what the last whole answer took, within these bounds.
Neither silence nor a short answer changes it, or silent names and those that trickle would."""
GIVEN_UP_AFTER = 4
"""Times the patience after which a question is no longer under way, ..."""
MIN_GIVEN_UP_SECONDS = 8.0
"""... but not before this, and not after MAX_PATIENCE_SECONDS: on a link that has become slow all answers take longer."""
WHOLE_SHARE = 0.5
"""An honest answer has as many entries as one message may have, and rarely less than this share of their bytes."""

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


@dataclass
class _Donor:
    """Instants are seconds of the peer's own clock."""

    end: Head
    """Of its ledger, as the donor named it last, ..."""
    heard_at: float
    """... or answered."""
    asked_at: float = -inf
    is_awaited: bool = False
    """Whether no answer came since then, however late."""
    took: float | None = None
    """Seconds that a whole answer takes at the pace of the last one; infinite where that was of no use, none where there was
    none."""
    near_at: float = -inf
    """When it was pulled as one that is near; of no account once it answers."""

    @property
    def seconds(self) -> float | None:
        """What an answer takes: infinitely long where the last one is still to come."""
        return inf if self.is_awaited else self.took


class EntryDonors:
    """The ends of others' ledgers and how fast these peers answered."""

    def __init__(self, *, period_seconds: float) -> None:
        """`period_seconds`: of gossip."""
        self._period_seconds = period_seconds
        self._donors: dict[PeerId, _Donor] = {}
        """Holders of longer and of other histories; those heard last at the end."""
        self._near: dict[tuple[Digest, bool], float] = {}
        """When an end that is near was pulled last, of strangers and of members."""
        self._under_way: tuple[PeerId, ...] = ()
        """Peers that were asked last; all that are awaited are among them."""
        self._patience = FIRST_PATIENCE_SECONDS
        self._is_members_turn = True

    @property
    def furthest_round(self) -> int:
        """To which any of them reaches."""
        return max((donor.end.round for donor in self._donors.values()), default=0)

    def end_of(self, peer: PeerId) -> Head | None:
        """The end that the peer named last."""
        donor = self._donors.get(peer)
        return donor.end if donor is not None else None

    def note_end(self, peer: PeerId, head: Head, now: float) -> None:
        """The peer names the end of its ledger."""
        donor = self._donors.get(peer) or _Donor(end=head, heard_at=now)
        donor.end, donor.heard_at = head, now
        remember(self._donors, peer, donor)

    def choose(
        self, have: Head, known: Container[Digest], *, roster: Collection[PeerId], without: Collection[PeerId], now: float
    ) -> PeerId | None:
        """The peer to ask now; none while an answer is awaited, or where nobody is far ahead of what is here and rested.

        It is the one whose last answer took the least time for what it brought. One that was never asked counts as if it took a
        period, the one that was heard last first. There may be any number of new names, so they get every second turn at most,
        and not while one of them is awaited, where one of the `roster` can be asked: that of the newest plan known here.
        `known`: plans of the own ledger."""
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
        """It was heard lately, and since it was asked in vain."""
        is_silent = donor.is_awaited and donor.heard_at <= donor.asked_at
        return not is_silent and now - donor.heard_at <= HEARD_PERIODS * self._period_seconds

    def _order(self, donor: _Donor) -> tuple[float, float, float]:
        seconds = donor.seconds
        return (self._period_seconds if seconds is None else seconds), donor.asked_at, -donor.heard_at

    def takes_near(self, peer: PeerId, *, roster: Container[PeerId], now: float) -> bool:
        """A peer named an end that is near. Whether to pull from it, which counts as done. Members share turns of their own,
        and one that is silent is passed over for a while."""
        donor, period = self._donors[peer], self._period_seconds
        turn = donor.end.digest, peer in roster
        is_silent = now - donor.near_at < SILENT_PERIODS * period
        if is_silent or now - self._near.get(turn, -inf) < period / NEAR_PULLS_PER_PERIOD:
            return False
        donor.near_at = now
        remember(self._near, turn, now)
        return True

    def note_answer(self, peer: PeerId, now: float, *, share: float) -> None:
        """Entries of the peer came, late ones and unasked ones among them. `share`: of a whole answer, in (0, 1], that was new
        here, 0 where it was of no use."""
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
    """Whether a ledger is so many rounds ahead of another one that the owner of that asks one donor at a time."""
    return num_rounds > NEAR_ROUNDS


def remember(known: dict[_Key, _Item], key: _Key, item: _Item) -> None:
    """As the latest of at most MAX_REMEMBERED."""
    known.pop(key, None)
    known[key] = item
    if len(known) > MAX_REMEMBERED:
        known.pop(next(iter(known)))
