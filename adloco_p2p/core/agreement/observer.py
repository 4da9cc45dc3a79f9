"""Reading along: the ledger and the signs of life of a swarm, for somebody who takes no part in it.

A follower asks and never tells: it has no seat, sends no heartbeat, asks to join nothing, and answers nobody. It probes a few
peers per period, whose heartbeats say what they know, and pulls the entries that it lacks. Every entry is checked like one's
own (`ledger.check_entry`), so whoever serves it can withhold plans, not invent them. Pure.
"""

from collections.abc import Sequence

from adloco_p2p.core.agreement.ledger_sync import LedgerExchange
from adloco_p2p.core.agreement.membership import MAX_KNOWN, Timing
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model.events import Send
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Verify
from adloco_p2p.core.model.messages import Entries, Heartbeat, Ping
from adloco_p2p.core.model.types import Decide, Digest, PeerId, RoundPlan, roster_of

PERIOD_SECONDS = 1.0
"""Between two rounds of questions."""
NUM_ASKED = 2
"""Peers that are probed per period, in turn."""


class Observer:
    """What one onlooker knows. `contacts` are peers to ask before any roster is known."""

    def __init__(
        self, genesis: RoundPlan, *, decide: Decide, verify: Verify, contacts: Sequence[PeerId], timing: Timing
    ) -> None:
        self.ledger = Ledger(genesis, recall=_nothing_is_forgotten)
        self._timing = timing
        self._exchange = LedgerExchange(decide, verify, period_seconds=PERIOD_SECONDS)
        self._contacts = dict.fromkeys(sorted(contacts)[:MAX_KNOWN])
        self._beats: dict[PeerId, int] = {}
        self._heard_at: dict[PeerId, float] = {}
        self._turn = 0
        self._next_questions = 0.0

    def is_alive(self, peer: PeerId, now: float) -> bool:
        """Whether a sign of life of the peer came within its lease, directly or through others."""
        lease = self._timing.lease(len(self.ledger.plans[-1].roster)) + 2 * PERIOD_SECONDS  # they are asked in turn
        return now - self._heard_at.get(peer, -lease - 1.0) <= lease

    def meet(self, contacts: Sequence[PeerId]) -> None:
        """More peers to ask."""
        for peer in contacts:
            if len(self._contacts) < MAX_KNOWN:
                self._contacts.setdefault(peer)

    def tick(self, now: float) -> list[Send]:
        """The period's questions."""
        if now < self._next_questions:
            return []
        self._next_questions = now + PERIOD_SECONDS
        known = list(dict.fromkeys([*roster_of(self.ledger.plans[-1]), *self._contacts]))
        asked = [known[(self._turn + index) % len(known)] for index in range(min(NUM_ASKED, len(known)))]
        self._turn = (self._turn + len(asked)) % max(1, len(known))
        return [Send(peer=peer, message=Ping(target=peer, is_relayed=False)) for peer in asked]

    def receive(self, sender: PeerId, message: object, now: float) -> list[Send]:
        """What follows from a message; kinds that are not for onlookers are passed over."""
        match message:
            case Heartbeat():
                return self._on_heartbeat(sender, message, now)
            case Entries():
                return self._on_entries(sender, message)
            case _:
                return []

    def _on_heartbeat(self, sender: PeerId, message: Heartbeat, now: float) -> list[Send]:
        self._hear(sender, message.beat, now)
        position = self.ledger.position.get(message.roster)
        if position is not None:
            for peer, beat in zip(roster_of(self.ledger.plans[position]), message.heard, strict=False):
                self._hear(peer, beat, now)
        if message.head.digest in self.ledger.position or message.head.rank <= self.ledger.head.rank:
            return []
        return [self._exchange.pull(self.ledger, sender)]

    def _hear(self, peer: PeerId, beat: int, now: float) -> None:
        is_news = beat > self._beats.get(peer, 0)
        if is_news and (peer in self._beats or len(self._beats) < MAX_KNOWN):
            self._beats[peer] = beat
            self._heard_at[peer] = now

    def _on_entries(self, sender: PeerId, message: Entries) -> list[Send]:
        """Append what continues the ledger; collect another history until it outranks ours, then take it."""
        before = self.ledger.head
        for entry in message.entries:
            if entry.value.plan in self.ledger.position:
                continue
            continued = self._exchange.continued_by(self.ledger, entry)
            if continued is None:
                return []
            if continued is self.ledger:
                self.ledger.append(entry)
            elif continued.head.rank > self.ledger.head.rank:
                self.ledger = continued
                self._exchange.forget_other()
        has_news = self._exchange.is_collecting or self.ledger.head != before
        return [self._exchange.pull(self.ledger, sender)] if has_news else []


def _nothing_is_forgotten(plan: Digest) -> LedgerEntry:
    raise AssertionError(f"a follower keeps its whole ledger in memory, {plan} was asked for")
