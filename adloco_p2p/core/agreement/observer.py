"""A light client: it follows the ledger and the heartbeats of a swarm without a seat on the roster.

An observer sends no heartbeat and no join request, and answers no message. It pings a few peers per period, whose heartbeats
list the beats that they know, and pulls the entries that it lacks. It checks every entry as a member does (`check_entry` of
`core/ledger/validation.py`), so a peer that serves it can withhold plans, but not invent them. It follows an emergency entry
if a member with the same view would.
"""

from collections.abc import Sequence
from math import inf

from adloco_p2p.core.agreement.emergency import STUCK_LEASES, is_contradicted
from adloco_p2p.core.agreement.known_peers import MAX_KNOWN
from adloco_p2p.core.agreement.ledger_sync import LedgerExchange
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.ledger.fork_choice import is_backed, switch_between
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model.effects import Send
from adloco_p2p.core.model.electorate import electorate, electors, is_emergency
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Verify
from adloco_p2p.core.model.messages import Entries, Heartbeat, Ping, WireMessage
from adloco_p2p.core.model.plan import Decide, RoundPlan, members_of, roster_of
from adloco_p2p.core.model.scalars import Digest, PeerId

PERIOD_SECONDS = 1.0
"""The time between two rounds of pings."""
NUM_PINGED = 2
"""The number of peers that are pinged per period, in turn."""


class Observer:
    """The state of one observer. `contacts` are peers to ping before any roster is known. Instants are seconds of its own
    clock."""

    def __init__(
        self, genesis: RoundPlan, *, decide: Decide, verify: Verify, contacts: Sequence[PeerId], timing: Timing
    ) -> None:
        self.ledger = Ledger(genesis, recall=_no_recall)
        self._timing = timing
        self._exchange = LedgerExchange(decide, verify, period_seconds=PERIOD_SECONDS)
        self._contacts = dict.fromkeys(sorted(contacts)[:MAX_KNOWN])
        self._beats: dict[PeerId, int] = {}
        """The highest beat that each peer named itself, the most recent one last."""
        self._told: dict[PeerId, int] = {}
        """The highest beat of each member that another member named. The owner may never hear of a false one, so it must not
        hide the beats that the owner names."""
        self._renewed_at: dict[PeerId, float] = {}
        self._heads: dict[PeerId, tuple[Digest, float]] = {}
        """The head that each member last named itself, and when."""
        self._doubted: tuple[Digest, float] | None = None
        """The plan whose successor is not followed, and since when."""
        self._turn = 0
        self._next_pings = 0.0

    def is_alive(self, peer: PeerId, now: float) -> bool:
        """Return whether a beat of the peer came within its lease, directly or through others."""
        return self._is_heard(peer, now, within=self._lease_seconds)

    def _is_heard(self, peer: PeerId, now: float, *, within: float) -> bool:
        return now - self._renewed_at.get(peer, -inf) <= within

    @property
    def _lease_seconds(self) -> float:
        return self._timing.lease(len(self.ledger.plans[-1].roster)) + 2 * PERIOD_SECONDS  # members are pinged in turn

    def meet(self, contacts: Sequence[PeerId]) -> None:
        """Add peers to ping."""
        for peer in contacts:
            if len(self._contacts) < MAX_KNOWN:
                self._contacts.setdefault(peer)

    def tick(self, now: float) -> list[Send]:
        """Return the pings of the period, and a pull of missing entries unless an answer is awaited."""
        if now < self._next_pings:
            return []
        self._next_pings = now + PERIOD_SECONDS
        known = list(dict.fromkeys([*roster_of(self.ledger.plans[-1]), *self._contacts]))
        pinged = [known[(self._turn + index) % len(known)] for index in range(min(NUM_PINGED, len(known)))]
        self._turn = (self._turn + len(pinged)) % max(1, len(known))
        pings = [Send(peer=peer, message=Ping(target=peer, is_relayed=False)) for peer in pinged]
        return [*pings, *self._exchange.pull_next(self.ledger, now=now)]

    def receive(self, sender: PeerId, message: WireMessage, now: float) -> list[Send]:
        """Handle a message; kinds of no use to an observer are ignored."""
        match message:
            case Heartbeat():
                return self._on_heartbeat(sender, message, now)
            case Entries():
                return self._exchange.follow(self, sender, message.entries, now=now)
            case _:
                return []

    def _on_heartbeat(self, sender: PeerId, message: Heartbeat, now: float) -> list[Send]:
        self._note_beat(self._beats, sender, message.beat, now)
        self._forget_beats()
        roster = members_of(self.ledger.plans[-1])
        if sender in roster:  # of a stranger's heartbeat only its own beat and its head count
            self._heads[sender] = (message.head.digest, now)
            position = self.ledger.position.get(message.roster)
            named = roster_of(self.ledger.plans[position]) if position is not None else ()
            for peer, beat in message.beats(named):
                if peer in roster and peer != sender:
                    self._note_beat(self._told, peer, beat, now)
        if message.head.digest in self.ledger.position:
            return []
        return self._exchange.announced(self, sender, message.head, now=now)

    def _note_beat(self, beats: dict[PeerId, int], peer: PeerId, beat: int, now: float) -> None:
        if beat > beats.get(peer, 0):
            beats.pop(peer, None)
            beats[peer] = beat
            self._renewed_at[peer] = now

    def _forget_beats(self) -> None:
        """Forget the peer that named a beat longest ago and is no member, if there are too many."""
        if len(self._beats) > MAX_KNOWN:
            roster = members_of(self.ledger.plans[-1])
            oldest = next((peer for peer in self._beats if peer not in roster), None)
            if oldest is not None:
                del self._beats[oldest]
                del self._renewed_at[oldest]

    # --- as the owner of a ledger that follows others ---

    def follow_entry(self, entry: LedgerEntry, now: float) -> bool:
        if self._is_contradicted(entry, now):
            return False
        self.ledger.append(entry)
        self._forget_heads()
        return True

    def follow_reorg(self, other: Ledger, now: float) -> None:
        reorg = switch_between(self.ledger, other)
        if not is_backed(reorg) and self._is_contradicted(reorg.won[0], now):
            return
        self.ledger = other
        self._forget_heads()

    def _forget_heads(self) -> None:
        """Forget the heads of peers that are no members, and the beats that others named of these."""
        roster = members_of(self.ledger.plans[-1])
        self._heads = {peer: head for peer, head in self._heads.items() if peer in roster}
        self._told = {peer: beat for peer, beat in self._told.items() if peer in roster}

    def _is_contradicted(self, entry: LedgerEntry, now: float) -> bool:
        """Return whether the next entry is an emergency of which there is no sign here. That holds for as long as the members
        have time to decide otherwise (`EmergencyCheck`)."""
        parent, certificate = self.ledger.plans[-1], entry.certificate
        if not is_emergency(certificate, parent):
            return False
        roster, deciding, lease = roster_of(parent), electorate(parent), self._lease_seconds
        in_turn = lease + PERIOD_SECONDS * len(roster) / NUM_PINGED  # so that all were pinged, whatever beats others named
        living = electors(deciding, roster, [peer for peer in roster if not self._is_heard(peer, now, within=in_turn)])
        heads = {peer: head for peer, (head, at) in self._heads.items() if now - at <= in_turn and peer in living}
        if not is_contradicted(certificate, entry.value.departed, heads, self.ledger, living=living):
            return False
        if self._doubted is None or self._doubted[0] != entry.value.parent:
            self._doubted = (entry.value.parent, now)
        return now <= self._doubted[1] + STUCK_LEASES * lease


def _no_recall(plan: Digest) -> LedgerEntry:
    raise AssertionError(f"an observer keeps its whole ledger in memory, {plan} was recalled")
