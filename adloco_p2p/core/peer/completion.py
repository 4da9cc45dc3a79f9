"""The completion barrier at the end of a run: a peer with the finished model stays until the others have it, because they may
still need something from it.

No plan follows the last one that would name the state after the last round. Therefore peers that have ended the run compare
their final states: each sends the root of its own, and whether a majority agreed on every step to it. From these claims each
computes the state of the run; a peer with another state fetches it.

If the claims name several states, a member that signs two claims could lead to two models. Peers then finish only once all of
them count the same claims: they compare a digest, and exchange the claims themselves if it differs.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from adloco_p2p.core.model.effects import Effect, Send
from adloco_p2p.core.model.ledger_entry import Sign, Verify
from adloco_p2p.core.model.messages import FinalClaim, RunComplete
from adloco_p2p.core.model.scalars import MAX_ROSTER, Digest, PeerId
from adloco_p2p.core.peer.final_claims import FinalClaims
from adloco_p2p.core.peer.plan_book import FinalState

RESEND_SECONDS = 2.0
"""Time after which `RunComplete` is resent to peers that have not sent it for the same plan and state."""
COMPLETION_SECONDS = 30.0
"""Time after which this peer stops even if others are not done and have not answered that they are still coming."""
PENDING_SECONDS = 300.0
"""Time after which this peer stops even if others have answered that they are still coming; the time for a state transfer is
added, because they may still fetch one."""


SETTLED_SECONDS = 3 * RESEND_SECONDS
"""How long peers wait after a claim that was new to them, so that those that count another claim of its author can show it; and
before they end with an error, so that claims of peers that have gone meanwhile can arrive."""


class CompletionBarrier:
    """Decides when a peer may go after the run. Call `begin` once this peer is done, and `withdraw` if another history wins
    after that or another state is to be fetched."""

    def __init__(self, me: PeerId, *, sign: Sign, verify: Verify, transfer_seconds: float = 0.0) -> None:
        """`transfer_seconds` is the time that a state may take over a slow link."""
        self.me = me
        self._pending_seconds = PENDING_SECONDS + transfer_seconds
        self.next_deadline: float | None = None
        self._sign = sign
        self._verify = verify
        self._own: RunComplete | None = None
        """The end of the run on this peer: the last plan, and the final state."""
        self._claims: FinalClaims | None = None
        """Claims about the last plan that this peer has reached."""
        self._before_own: FinalClaims | None = None
        """Claims of others about a last plan that this peer has not reached yet."""
        self._sent: Digest | None = None
        """Digest of the claims that this peer counted when it last sent its message."""
        self._ended: dict[PeerId, RunComplete] = {}
        """The end of the run on other peers, as in their last messages, the latest last; an end in another history does not
        count. The network refuses this kind of message from strangers, but a peer without a seat knows no strangers."""
        self._others: tuple[PeerId, ...] = ()
        self._began_at = 0.0
        self._changed_at = 0.0
        """Time at which this peer last saw that it counts other claims than before."""
        self._unsure_since: float | None = None
        """Time since which no peer is awaited, yet no claim shows the model of the run. Seconds."""
        self._pending: dict[PeerId, None] = {}
        """Peers whose last message answered that they are not done."""

    @property
    def has_begun(self) -> bool:
        return self._own is not None

    @property
    def liars(self) -> tuple[PeerId, ...]:
        """Members that signed two different claims about the end of this history."""
        return self._claims.liars if self._claims is not None else ()

    def begin(
        self, *, plan: Digest, state: Digest | None, is_agreed: bool, roster: Sequence[PeerId], now: float
    ) -> list[Effect]:
        """Announce the end of the run to all others. A peer that comes here again, with the others' state, keeps its first
        claim."""
        if self._claims is None or self._claims.own.plan != plan:
            claim = FinalClaim(peer=self.me, plan=plan, state=state, is_agreed=is_agreed)
            self._claims = FinalClaims(replace(claim, signature=self._sign(claim.payload)), roster, self._verify)
        for message in self._ended.values():
            self._claims.take(message.claims)
        self._own = RunComplete(plan=plan, state=state)
        self._others = tuple(peer for peer in roster if peer != self.me)
        self._began_at = self._changed_at = now
        self._unsure_since = None
        self.next_deadline = now + RESEND_SECONDS
        self._sent = self._claims.digest
        message = self._message()
        return [Send(peer=peer, message=message) for peer in self._others]

    def withdraw(self) -> None:
        """Note that this peer is no longer done."""
        self._own = self.next_deadline = None

    def received(self, sender: PeerId, message: RunComplete) -> list[Effect]:
        self._pending.pop(sender, None)
        self._ended.pop(sender, None)
        if message.plan is None:
            self._pending[sender] = None
            _forget_oldest(self._pending)
            return []
        of_sender = tuple(claim for claim in message.claims if claim.peer == sender)
        self._ended[sender] = replace(message, claims=of_sender[:1])
        _forget_oldest(self._ended)
        if self._claims is not None:
            self._claims.take(message.claims)
        return [] if message.is_answer else [Send(peer=sender, message=replace(self._message(), is_answer=True))]

    def tick(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        if self.next_deadline is None or now < self.next_deadline or self._own is None or self._claims is None:
            return []
        self.next_deadline = now + RESEND_SECONDS
        differing = self._differing(gone)
        waiting = {*self._missing(self._own.plan, self._others, gone), *self._elsewhere(gone), *differing}
        lacks_claims = differing if self._sent == self._claims.digest else ()  # else those of others may be out of date, too
        self._changed_at = now if self._sent != self._claims.digest else self._changed_at
        self._sent = self._claims.digest
        return [Send(peer=peer, message=self._message(peer in lacks_claims)) for peer in self._others if peer in waiting]

    def _message(self, shows_all: bool = False) -> RunComplete:
        if self._own is None or self._claims is None:
            return RunComplete(plan=None)
        claims = self._claims.all if shows_all else (self._claims.own,)
        return replace(self._own, claims=claims, counted=self._claims.digest)

    def is_over(self, now: float, gone: Collection[PeerId]) -> bool:
        """Return whether all living peers are done and, if it matters, count the same claims, or the time for those that do not
        is over. Claims that arrive at the end of that time are shown to the others first; a member has at most two."""
        if self._own is None:
            return False
        awaited = [*self._missing(self._own.plan, self._others, gone), *self._differing(gone)]
        return not awaited or (self._is_settled(now) and self._is_enough(awaited, now))

    def _is_settled(self, now: float) -> bool:
        if self._claims is None or not self._claims.are_mixed:
            return True
        return self._sent == self._claims.digest and now >= self._changed_at + SETTLED_SECONDS

    def is_last_word(self, now: float) -> bool:
        """Return whether this was first asked so long ago that no claim can still be on its way: news that a peer has gone may
        come before its claim."""
        self._unsure_since = now if self._unsure_since is None else self._unsure_since
        return now >= self._unsure_since + SETTLED_SECONDS

    def may_go(self, now: float, gone: Collection[PeerId]) -> bool:
        """Return whether the wait is over, and no other peer still has a state that it would exchange for that of this peer."""
        return self.is_over(now, gone) and self._is_enough(self._elsewhere(gone), now)

    def _is_enough(self, awaited: Collection[PeerId], now: float) -> bool:
        seconds = self._pending_seconds if any(peer in self._pending for peer in awaited) else COMPLETION_SECONDS
        return not awaited or now >= self._began_at + seconds

    def are_all_done(self, plan: Digest, roster: Sequence[PeerId], gone: Collection[PeerId]) -> bool:
        """Return whether at least one other peer is done with this last plan, and every other one is done or gone."""
        others = [peer for peer in roster if peer != self.me]
        return any(self._is_at(peer, plan) for peer in others) and not self._missing(plan, others, gone)

    def final_state(self, voters: Sequence[PeerId]) -> FinalState | None:
        """Return the final state of the run; see `FinalClaims.final_state`."""
        if self._own is None or self._claims is None:
            return None
        return self._claims.final_state(voters, self._held(self._own.plan) | {self.me: self._own.state})

    def state_of_most(self, plan: Digest, roster: Sequence[PeerId], voters: Sequence[PeerId]) -> FinalState | None:
        """Return the final state of more than half of the voters, if there is one, for a peer that has not reached the last
        plan."""
        claims = self._before_own
        if claims is None or claims.own.plan != plan:
            nothing = FinalClaim(peer=self.me, plan=plan, state=None, is_agreed=False)
            claims = self._before_own = FinalClaims(nothing, roster, self._verify)
        for message in self._ended.values():
            claims.take(message.claims)
        run = claims.final_state(voters, self._held(plan))
        return run if run is not None and run.is_of_most else None

    def _held(self, plan: Digest | None) -> dict[PeerId, Digest | None]:
        return {peer: message.state for peer, message in self._ended.items() if message.plan == plan}

    def _elsewhere(self, gone: Collection[PeerId]) -> list[PeerId]:
        """Return the living peers that are done with another state than this peer's."""
        own = self._own
        if own is None or own.state is None:
            return []
        done = [peer for peer in self._others if peer not in gone and self._is_at(peer, own.plan)]
        return [peer for peer in done if self._ended[peer].state not in (None, own.state)]

    def _differing(self, gone: Collection[PeerId]) -> list[PeerId]:
        """Return the living peers that are done and count other claims than this one, in a situation where one more claim could
        change the outcome."""
        if self._own is None or self._claims is None or not self._claims.are_mixed:
            return []
        done = [peer for peer in self._others if peer not in gone and self._is_at(peer, self._own.plan)]
        return [peer for peer in done if self._ended[peer].counted != self._claims.digest]

    def _missing(self, plan: Digest | None, peers: Sequence[PeerId], gone: Collection[PeerId]) -> list[PeerId]:
        return [peer for peer in peers if not self._is_at(peer, plan) and peer not in gone]

    def _is_at(self, peer: PeerId, plan: Digest | None) -> bool:
        return peer in self._ended and self._ended[peer].plan == plan


def _forget_oldest(heard: dict[PeerId, Any]) -> None:
    """Forget the peers heard longest ago where there are more than a roster holds: a peer without a seat hears any name."""
    while len(heard) > MAX_ROSTER:
        del heard[next(iter(heard))]
