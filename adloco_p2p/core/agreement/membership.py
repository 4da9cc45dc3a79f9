"""Membership as in SWIM: heartbeats spread by gossip, leases, suspects, direct and indirect pings, joins and leaves.

Every period a peer raises its own beat and sends it to a few peers, with the highest beats that it knows of all members. A
beat that rises renews the lease of its owner BY THE RECEIVER'S CLOCK; clocks of two machines are never compared. So a peer
counts as alive wherever its beats arrive by any path, and one bad link removes no member. A beat that another member passes on
counts only within the incarnation that the owner signed or named itself; one that a stranger passes on does not count. A silent
peer counts as gone only when its lease has run out. Suspicion comes earlier: a suspect is pinged, directly and through others,
and proposers do not wait for it.

Messages per peer and second do not depend on the size of the swarm. Above `MAX_HEARD` peers the size of a heartbeat does not
either: it names the beats of that many successive members of the roster, drawn anew each time, so beats spread more slowly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, log2
from typing import TypeVar

from adloco_p2p.core.agreement.known_peers import MAX_KNOWN, KnownPeers
from adloco_p2p.core.agreement.living import Living
from adloco_p2p.core.model.effects import Broadcast, Effect, Send
from adloco_p2p.core.model.ledger_entry import Decree, Head, JoinRequest, ProofOfWork, Sign, Ticket, Verify
from adloco_p2p.core.model.messages import MAX_HEARD, MAX_PASSED_ON, Heartbeat, Leave, Life, Ping
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import LARGEST_COUNT, Digest, PeerId

T = TypeVar("T")

BEATS_PER_INCARNATION = 10_000_000
"""The range of beats of one incarnation, more than its heartbeats in four months at one per second."""
LARGEST_INCARNATION = LARGEST_COUNT // BEATS_PER_INCARNATION - 1
"""The largest incarnation all of whose beats can be encoded."""
LEASES_REMEMBERED = 8
"""The number of leases for which a join request is remembered, so that late copies are no news; it counts for one lease."""
PASSIVE_FANOUT = 2
"""The number of peers to which a passive member sends its heartbeat per period."""
BEATS_FOR_OTHERS = 8
"""About the most heartbeats per period that all members together send to each peer that does not count."""
ROSTERS_KEPT = 8
"""The number of newest rosters whose heartbeat vectors are understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations in seconds of the peer's own monotonic clock."""

    heartbeat_seconds: float = 1.0
    fanout: int = 3
    """The number of peers that get each heartbeat, and each message that is relayed in a large roster."""
    lease_seconds: float = 5.5
    """The part of a lease that is the same in every roster. It grows by one period per doubling of the roster, for beats to get
    around, and beyond `MAX_HEARD` members these periods are longer in proportion; see `lease`."""
    margin_seconds: float = 0.5
    """The time after the lease at which a proposer leaves out a peer, so that the lease has run out at other peers, too."""
    num_pings: int = 4
    """The number of suspects that are pinged per period."""
    num_ping_relays: int = 2
    """The number of peers per suspect that are asked for an indirect ping."""
    stall_seconds: float = 2.5
    """The longest normal gap between two calls. In a longer one this process stood still (suspended, swapped out), and no lease
    runs in it."""
    attempt_seconds: float = 1.5
    """The time of a ballot, in a small roster, after which the next proposer takes over."""
    grace_seconds: float = 2.0
    """The shortest time for which a proposer waits for further reports after those of a majority."""
    straggler_seconds: float = 60.0
    """The longest time for which a proposer waits after the first report, in addition to twice the expected time of a round."""
    direct_limit: int = 24
    """The largest roster in which every member sends to all others; in a larger one messages are relayed."""

    def lease(self, roster_size: int) -> float:
        """Return the seconds for which a silent peer counts: long enough for its beats to get around, even if a heartbeat has
        no room for all."""
        return self.lease_seconds + self.heartbeat_seconds * ceil(log2(max(2, roster_size))) * max(1.0, roster_size / MAX_HEARD)

    def ballot_timeout(self, roster_size: int) -> float:
        """Return the seconds that one ballot may take, more in a larger roster."""
        return self.attempt_seconds * max(1.0, log2(max(2, roster_size)) / 3)


class Membership:
    """One peer's view of the others, which `GossipAgreement` drives. Instants are seconds of the peer's own clock."""

    def __init__(
        self, me: PeerId, *, run: Digest, sign: Sign, verify: Verify, draw: Callable[[], float], timing: Timing
    ) -> None:
        self.me = me
        self.timing = timing
        self.head: Head | None = None
        """The head of the ledger, for the heartbeats; set by the consensus."""
        self.have = 0
        """The reports that this peer holds, as bits, for the heartbeats; set by the consensus."""
        self.statements: tuple[Decree, ...] = ()
        """Statements and evidence to be passed on; set by the consensus."""
        self.ticket: Ticket | ProofOfWork | None = None
        """The ticket or proof of work that this peer shows with its join request."""
        self.is_let_in: Callable[[JoinRequest, PeerId, float], bool] = lambda *_: True
        """Whether the run admits the peer of a request, given its sender and the time; set by the consensus. Other requests are
        not kept."""
        self._run = run
        self._sign = sign
        self._verify = verify
        self._draw = draw
        self._beat = 0
        self._capacity: Capacity | None = None
        self.is_passive = False
        """Whether this peer has left: its beat does not rise, so it does not count, and it only follows the ledger."""
        self.lease_seconds = timing.lease(1)
        """The lease of the current roster."""
        self._roster: tuple[PeerId, ...] = ()
        self._members: frozenset[PeerId] = frozenset()
        self._roster_digest = Digest("")
        self._rosters: dict[Digest, tuple[PeerId, ...]] = {}
        self._beats: dict[PeerId, int] = {}
        """The highest known beat of each member, former member and peer that asks to join."""
        self._lives: dict[PeerId, tuple[Life, float]] = {}
        """The newest incarnation certificate of each member, and when it came here."""
        self._life: Life | None = None
        """This peer's own incarnation certificate."""
        self._proven: dict[PeerId, None] = {}
        """Peers that made their incarnation known themselves. Until then, after a start, any member's statement counts."""
        self._ever: dict[PeerId, None] = {}
        """The peers of all rosters since this process began, the most recent ones if there are many."""
        self.last_contact = 0.0
        """When the last heartbeat of a peer came that has or had a seat, or follows the run; at first, the start."""
        self._renewed: dict[PeerId, float] = {}
        """When the beat of each peer last rose."""
        self._living: Living | None = None
        """The cached living members; None after a change that may make them wrong."""
        self._in_order: tuple[Living, Sequence[PeerId], Sequence[PeerId]] | None = None
        """The last answer of `responsive`, after its two inputs."""
        self.known = KnownPeers(me)
        self._leaves: dict[PeerId, Leave] = {}
        self._joins: dict[PeerId, tuple[JoinRequest, float]] = {}
        self._indirect_pings: dict[PeerId, list[PeerId]] = {}
        """The peers that wait for the heartbeat of a target, by target, within this period."""
        self._next_beat = 0.0
        self._last_call = 0.0

    # --- facts ---

    @property
    def next_deadline(self) -> float:
        return self._next_beat

    def lease_valid(self, peer: PeerId, now: float) -> bool:
        """Return whether the peer counts: it has not left, and its beat rose within the lease."""
        if peer == self.me:
            return True
        return peer not in self._leaves and now - self._renewed.get(peer, -1e18) <= self.lease_seconds

    def is_absent(self, peer: PeerId, now: float) -> bool:
        """Whether a proposer should leave the peer out: it left, or its lease ran out a moment ago."""
        return not self.lease_valid(peer, now - self.timing.margin_seconds)

    def is_silent(self, peer: PeerId, now: float) -> bool:
        """Return whether a proposer should leave the peer out although it has not left, so that it may come back."""
        return self.is_absent(peer, now) and peer not in self._leaves

    def is_silent_member(self, peer: PeerId, now: float) -> bool:
        """Return whether the peer is on the roster and has not left, but its beat has not risen within the lease."""
        return peer in self._members and peer not in self._leaves and not self.lease_valid(peer, now)

    def is_suspect(self, peer: PeerId, now: float) -> bool:
        """Return whether the peer's beat has not risen for half a lease, so that proposers do not wait for it."""
        return peer != self.me and now - self._renewed.get(peer, -1e18) > self.lease_seconds / 2

    def living(self, now: float) -> Living:
        """Return the members that count; the same object for as long as it is valid."""
        if self._living is None or not self._living.holds(now):
            self._living = self._look(now)
        return self._living

    def _look(self, now: float) -> Living:
        there = tuple(peer for peer in self._roster if self.lease_valid(peer, now))
        responsive = frozenset(peer for peer in there if not self.is_suspect(peer, now))
        ends = [
            self._renewed[peer] + (self.lease_seconds / 2 if peer in responsive else self.lease_seconds)
            for peer in there
            if peer != self.me
        ]
        return Living(there=there, responsive=responsive, since=now, until=min(ends, default=inf))

    def responsive(self, peers: tuple[PeerId, ...], now: float) -> Sequence[PeerId]:
        """Return those of `peers` that count and are no suspects, in order: others wait for them."""
        living, known = self.living(now), self._in_order
        if known is None or known[0] is not living or known[1] is not peers:
            known = self._in_order = living, peers, tuple(peer for peer in peers if peer in living.responsive)
        return known[2]

    def view(self, now: float) -> tuple[PeerId, ...]:
        """Return the members that count, sorted."""
        return self.living(now).there

    def beat_of(self, peer: PeerId) -> int:
        return self._beat if peer == self.me else self._beats.get(peer, 0)

    def candidates(self, now: float) -> tuple[JoinRequest, ...]:
        """Return the fresh join requests of peers that are not on the roster, sorted by peer."""
        fresh = [
            request
            for peer, (request, received_at) in sorted(self._joins.items())
            if now - received_at <= self.lease_seconds and peer not in self._members and peer not in self._leaves
        ]
        return tuple(fresh)

    # --- what happens ---

    def start(self, *, incarnation: int, contacts: Sequence[PeerId], capacity: Capacity, now: float) -> None:
        """Begin an incarnation. `contacts` get heartbeats before any roster is known."""
        self._beat = incarnation * BEATS_PER_INCARNATION
        self._capacity = capacity
        self._next_beat = now
        self._last_call = self.last_contact = now
        for peer in sorted(contacts):
            self.known.remember(peer)

    def set_roster(self, digest: Digest, peers: Sequence[PeerId], now: float) -> None:
        """Make these peers the members. Newcomers, and all peers after a start, begin with a full lease."""
        self._roster, self._roster_digest = tuple(sorted(peers)), digest
        self._members = frozenset(peers)
        self.learn_roster(digest, peers)
        self.lease_seconds = self.timing.lease(len(self._roster))
        self._lives = {peer: known for peer, known in self._lives.items() if peer in self._members}
        self._living = None
        for peer in self._roster:
            self.known.remember(peer)
            self._renewed.setdefault(peer, now)

    def note_seated(self, requests: Sequence[JoinRequest], now: float) -> None:
        """Note the beats in the join requests by which a plan seats peers. Of a former member the lease has run out here, or
        its leave counts, and its request may have reached the proposer only. The plan may be old, so the incarnation of the
        beat, though signed, is not known to be the newest one."""
        for request in requests:
            if request.peer != self.me:
                self._renew(request.peer, request.beat, now)

    def learn_roster(self, digest: Digest, peers: Sequence[PeerId]) -> None:
        """Remember the roster of a plan, so that heartbeats of peers whose newest plan it is are understood."""
        for peer in peers:
            self._ever.pop(peer, None)
            self._ever[peer] = None
        while len(self._ever) > MAX_KNOWN:
            self._forget(next(iter(self._ever)))
        self._rosters.pop(digest, None)
        self._rosters[digest] = tuple(sorted(peers))
        while len(self._rosters) > ROSTERS_KEPT:
            del self._rosters[next(iter(self._rosters))]

    def offer(self, capacity: Capacity) -> None:
        """Set the capacity that this peer states when it asks to join."""
        self._capacity = capacity

    def leave(self, now: float) -> list[Effect]:
        """Become passive: the others stop counting this peer at once."""
        self.observe(now)
        self.is_passive = True
        self._beat += 1
        unsigned = Leave(peer=self.me, run=self._run, beat=self._beat, signature="")
        return [Broadcast(message=replace(unsigned, signature=self._sign(unsigned.payload)))]

    def rejoin(self, now: float) -> None:
        """Cancel the leave by higher beats. The others begin with a full lease, as after a start, because their beats did not
        reach a passive member."""
        self.observe(now)
        self._renewed.update(dict.fromkeys(self._roster, now))
        self._living = None
        self.is_passive = False
        self._next_beat = now

    def observe(self, now: float) -> None:
        """Note the time, first in every entry point, and extend all leases by a gap in this process's own time, which is no
        silence of the others."""
        gap = now - self._last_call
        assert gap >= 0, "the monotonic clock went back"
        self._last_call = now
        if gap > self.timing.stall_seconds:
            self._living = None
            self.last_contact += gap
            for peer in self._renewed:
                self._renewed[peer] += gap
            self._joins = {peer: (request, at + gap) for peer, (request, at) in self._joins.items()}

    def handle(self, sender: PeerId, message: Heartbeat | Ping | Leave, now: float) -> list[Effect]:
        self.observe(now)
        match message:
            case Heartbeat():
                return self._on_heartbeat(sender, message, now)
            case Ping():
                return self._on_ping(sender, message)
            case Leave():
                self._on_leave(message)
                return []

    def note_beat(self, peer: PeerId, beat: int, now: float) -> None:
        """Renew the peer's lease if the beat, which another member reported, is news.

        Only beats of the incarnation that the owner made known count. No member can lift a beat out of the owner's reach: the
        higher beat reaches the owner too, which continues from it, and signs the next incarnation if this one is used up.
        """
        is_same_incarnation = beat // BEATS_PER_INCARNATION == self.beat_of(peer) // BEATS_PER_INCARNATION
        if peer == self.me:
            self._beat = max(self._beat, beat if is_same_incarnation else 0)
        elif is_same_incarnation or peer not in self._proven:
            self._renew(peer, beat, now)

    def _note_owner_beat(self, peer: PeerId, beat: int, now: float) -> None:
        """Note a beat that the peer named itself, over a connection that proves its identity or with its signature."""
        known = self._beats.get(peer, 0)
        if peer not in self._proven and beat // BEATS_PER_INCARNATION < known // BEATS_PER_INCARNATION:
            self._beats[peer] = 0  # the higher incarnation was only the statement of others
        self._proven[peer] = None
        self._renew(peer, beat, now)

    def _renew(self, peer: PeerId, beat: int, now: float) -> None:
        if beat > self._beats.get(peer, 0):
            self._beats[peer] = beat
            self._renewed[peer] = now
            if self._living is not None and peer in self._members and peer not in self._living.responsive:
                self._living = None
            left = self._leaves.get(peer)
            if left is not None and beat > left.beat:
                del self._leaves[peer]

    def tick(self, now: float) -> list[Effect]:
        """Return the heartbeats and pings of the period, once per period."""
        self.observe(now)
        if now < self._next_beat:
            return []
        self._next_beat = now + self.timing.heartbeat_seconds
        if self.head is None:
            return []
        self._indirect_pings.clear()
        if self.is_passive:
            targets = self._sample_in_turn(list(self.known), PASSIVE_FANOUT)
            return [Send(peer=peer, message=self.heartbeat(now)) for peer in targets]
        self._beat += 1
        message = self.heartbeat(now)
        living = self.living(now)
        live = [peer for peer in living.there if peer != self.me]
        # A peer that left may be back although its beats have not come here; that is worth a try if no other member is left.
        counted = frozenset(live)
        not_live = [peer for peer in self.known if peer not in counted and peer != self.me]
        elsewhere = [peer for peer in not_live if not live or peer not in self._leaves]
        num_elsewhere = int(self._is_turn_elsewhere(len(live), len(elsewhere))) if live else self.timing.fanout
        targets = self._sample(live, self.timing.fanout) + self._sample_in_turn(elsewhere, num_elsewhere)
        effects: list[Effect] = [Send(peer=peer, message=message) for peer in targets]
        suspects = [peer for peer in live if peer not in living.responsive]
        others = [peer for peer in live if peer in living.responsive] if suspects else []
        for suspect in self._sample(suspects, self.timing.num_pings):
            effects.append(Send(peer=suspect, message=Ping(target=suspect, is_relayed=False)))
            relays = self._sample(others, self.timing.num_ping_relays)
            effects += [Send(peer=relay, message=Ping(target=suspect, is_relayed=True)) for relay in relays]
        return effects

    def _is_turn_elsewhere(self, num_live: int, num_elsewhere: int) -> bool:
        """Return whether this member sends a heartbeat to a peer that does not count in this period. Each member does, but many
        members take turns if there are few such peers, or the link of a newcomer would be full of heartbeats."""
        if self.me not in self._members or not num_elsewhere:
            return True
        num_turns = ceil((num_live + 1) / (BEATS_FOR_OTHERS * num_elsewhere))
        return (self._beat + self._roster.index(self.me)) % num_turns == 0

    def heartbeat(self, now: float, *, about: PeerId | None = None) -> Heartbeat:
        """Return this peer's heartbeat. It passes on the incarnation certificate of `about` for certain, those of others at
        random."""
        assert self.head is not None
        joins = [request for request in self.candidates(now) if request.peer != self.me]
        if self.me not in self._members and not self.is_passive:
            joins = [self.join_request(), *joins]
        leaves = [leave for peer, leave in sorted(self._leaves.items()) if peer in self._members]
        heard_from = int(self._draw() * len(self._roster)) if len(self._roster) > MAX_HEARD else 0
        return Heartbeat(
            beat=self._beat,
            roster=self._roster_digest,
            heard=tuple(self.beat_of(peer) for peer in self._in_row(heard_from)),
            heard_from=heard_from,
            head=self.head,
            have=self.have,
            joins=tuple(joins[:1] + self._sample(joins[1:], MAX_PASSED_ON - 1)),
            leaves=tuple(self._sample(leaves, MAX_PASSED_ON)),
            lives=self._lives_to_send(now, about),
            statements=self.statements,
        )

    def _in_row(self, start: int) -> Sequence[PeerId]:
        """Return the members whose beats go into one heartbeat, from this place of the roster on."""
        return (self._roster[start:] + self._roster[:start])[:MAX_HEARD]

    def _lives_to_send(self, now: float, about: PeerId | None) -> tuple[Life, ...]:
        certain = [self._own_life()] if self.me in self._members else []
        certain += [self._lives[about][0]] if about in self._lives else []
        recent = [peer for peer, (_, at) in self._lives.items() if peer != about and now - at <= self.lease_seconds]
        drawn = self._sample(sorted(recent), MAX_PASSED_ON - len(certain))
        return (*certain, *(self._lives[peer][0] for peer in drawn))

    def _own_life(self) -> Life:
        incarnation = self._beat // BEATS_PER_INCARNATION
        if self._life is None or self._life.incarnation != incarnation:
            unsigned = Life(peer=self.me, run=self._run, incarnation=incarnation, signature="")
            self._life = replace(unsigned, signature=self._sign(unsigned.payload))
        return self._life

    def sample_live(self, count: int, now: float, *, without: Sequence[PeerId] = ()) -> list[PeerId]:
        """Return at most `count` random members that count, except this peer and `without`."""
        return self._sample([peer for peer in self.view(now) if peer != self.me and peer not in without], count)

    # --- inside ---

    def _on_heartbeat(self, sender: PeerId, message: Heartbeat, now: float) -> list[Effect]:
        """Take up a heartbeat. Of a stranger's only the join requests count here; the consensus looks at its head. That of a
        former member also renews its own lease: this peer may follow a branch without it, and return to one that seats it."""
        self.known.remember(sender)
        if sender in self._ever or all(request.peer != sender for request in message.joins):  # another newcomer is no contact
            self.last_contact = now
        for request in message.joins:
            self._on_join(request, sender, now)
        if sender not in self._members:
            if sender in self._ever:
                self._note_owner_beat(sender, message.beat, now)
            return []
        for life in message.lives:
            self._on_life(life, now)
        self._note_owner_beat(sender, message.beat, now)
        members, known = self._members, self._beats
        for peer, beat in message.beats(self._rosters.get(message.roster, ())):
            if peer in members and beat > known.get(peer, 0):
                self.note_beat(peer, beat, now)
        for leave in message.leaves:
            self._on_leave(leave)
        if self.head is None:
            return []
        effects: list[Effect] = [Send(peer=peer, message=self.heartbeat(now)) for peer in self._indirect_pings.pop(sender, [])]
        if sender in self._lives and self._lives[sender][0].incarnation > message.beat // BEATS_PER_INCARNATION:
            effects.append(Send(peer=sender, message=self.heartbeat(now, about=sender)))  # the sender has lost its journal
        return effects

    def _on_life(self, life: Life, now: float) -> None:
        """Learn a member's newest incarnation, whichever peer passes it on. If that of this peer itself is newer than in its
        journal, the journal was lost, and the next incarnation begins."""
        known = self._lives.get(life.peer)
        is_news = known is None or life.incarnation > known[0].incarnation
        if life.run != self._run or life.peer not in self._members or life.incarnation >= LARGEST_INCARNATION:
            return
        if life.peer == self.me:
            is_known_here = life.incarnation <= self._beat // BEATS_PER_INCARNATION
            if not is_known_here and self._verify(life.peer, life.payload, life.signature):
                self._beat = (life.incarnation + 1) * BEATS_PER_INCARNATION
        elif is_news and self._verify(life.peer, life.payload, life.signature):
            self._lives[life.peer] = life, now
            self._note_owner_beat(life.peer, life.incarnation * BEATS_PER_INCARNATION, now)

    def _on_ping(self, sender: PeerId, message: Ping) -> list[Effect]:
        if self.head is None or self.is_passive:
            return []
        if message.target == self.me:
            self._beat += 1  # so that the answer is news, whichever beat the sender had before
            return [Send(peer=sender, message=self.heartbeat(self._last_call))]
        if not message.is_relayed or message.target not in self._members:
            return []
        waiting = self._indirect_pings.setdefault(message.target, [])
        if sender not in waiting:
            waiting.append(sender)
        return [Send(peer=message.target, message=Ping(target=message.target, is_relayed=False))]

    def _on_join(self, request: JoinRequest, sender: PeerId, now: float) -> None:
        known = self._joins.get(request.peer)
        is_news = known is None or request.beat > known[0].beat
        if request.run != self._run or request.peer == self.me or not is_news:
            return
        is_signed = self._verify(request.peer, request.payload, request.signature)
        if is_signed and self.is_let_in(request, sender, now):
            self._joins.pop(request.peer, None)
            self._joins[request.peer] = (request, now)  # a member's request, too: newer plans may have left the member out
            self._forget_requests(now)
            self.known.remember(request.peer)
            self._note_owner_beat(request.peer, request.beat, now)

    def _forget_requests(self, now: float) -> None:
        """Drop old join requests, and the oldest if there are too many: the dictionary is in the order of arrival."""
        while self._joins:
            peer, (_, received_at) = next(iter(self._joins.items()))
            if len(self._joins) <= MAX_KNOWN and now - received_at <= LEASES_REMEMBERED * self.lease_seconds:
                return
            del self._joins[peer]
            if peer not in self._ever:
                self._forget(peer)

    def _forget(self, peer: PeerId) -> None:
        """Forget everything about a peer that is no longer of interest."""
        self._living = None
        for table in (self._beats, self._renewed, self._proven, self._ever, self._leaves):
            table.pop(peer, None)

    def _on_leave(self, leave: Leave) -> None:
        is_known = leave.peer in self._ever or leave.peer in self._joins
        is_news = leave.peer not in self._leaves and leave.beat >= self._beats.get(leave.peer, 0)
        if not is_known or not is_news or leave.run != self._run or leave.peer == self.me:
            return
        if self._verify(leave.peer, leave.payload, leave.signature):
            self._leaves[leave.peer] = leave
            self._living = None
            self._proven[leave.peer] = None
            self._beats[leave.peer] = leave.beat

    def join_request(self) -> JoinRequest:
        """Return this peer's own join request as of now."""
        assert self._capacity is not None
        unsigned = JoinRequest(
            peer=self.me,
            run=self._run,
            capacity=self._capacity,
            beat=self._beat,
            round=self.head.round if self.head is not None else 0,
            ticket=self.ticket,
            signature="",
        )
        return replace(unsigned, signature=self._sign(unsigned.payload))

    def _sample_in_turn(self, items: Sequence[PeerId], count: int) -> list[PeerId]:
        """Draw `count` of the items, half of them from former electors and half from other names as far as there are enough."""
        first, second = self.known.in_turn(items, self._beat)
        chosen = self._sample(first, ceil(count / 2))
        chosen += self._sample(second, count - len(chosen))
        return chosen

    def _sample(self, items: Sequence[T], count: int) -> list[T]:
        """Draw at most `count` of the items without replacement."""
        pool = list(items)
        chosen: list[T] = []
        while pool and len(chosen) < count:
            chosen.append(pool.pop(int(self._draw() * len(pool))))
        return chosen
