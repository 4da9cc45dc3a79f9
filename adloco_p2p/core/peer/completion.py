"""The end of a run: a peer with the finished model stays until the others have it, as they may still need something of it.

No plan follows the last one that would name the state after the last round. So peers that have ended the run compare their
final states: each sends the root of its own, and whether a majority agreed on every step to it. From these claims each computes
the state of the run; a peer with another one fetches it.
"""

from collections.abc import Collection, Mapping, Sequence

from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.events import Effect, Send
from adloco_p2p.core.model.messages import RunComplete
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.peer.plan_book import FinalState

RESEND_SECONDS = 2.0
"""`RunComplete` is resent after this time, to peers that have not sent it for the same plan and state."""
COMPLETION_SECONDS = 30.0
"""After this time this peer stops even if others are not done, and have not answered that they are still coming."""
PENDING_SECONDS = 300.0
"""The same if one has answered so: it may still fetch a state. None holds the others up for longer."""


class CompletionBarrier:
    """`begin` once this peer is done, `withdraw` where another history wins after that, or another state is to be fetched."""

    def __init__(self, me: PeerId) -> None:
        self.me = me
        self.next_deadline: float | None = None
        self._own: RunComplete | None = None
        """The end of the run on this peer: the last plan, and the final state."""
        self._ended: dict[PeerId, RunComplete] = {}
        """The same of others: one of another history is not done in this one. Only members' messages come here: the network
        refuses strangers this kind."""
        self._others: tuple[PeerId, ...] = ()
        self._began_at = 0.0
        self._pending: dict[PeerId, None] = {}
        """Peers that answered that they are not done; the last message of each counts."""

    def begin(self, own: RunComplete, roster: Sequence[PeerId], now: float) -> list[Effect]:
        """Send it to all others."""
        self._own = own
        self._others = tuple(peer for peer in roster if peer != self.me)
        self._began_at = now
        self.next_deadline = now + RESEND_SECONDS
        return [Send(peer=peer, message=own) for peer in self._others]

    def withdraw(self) -> None:
        """This peer is not done any more."""
        self._own = self.next_deadline = None

    def received(self, sender: PeerId, message: RunComplete) -> list[Effect]:
        if message.plan is None:
            self._pending[sender] = None
            self._ended.pop(sender, None)
            return []
        self._ended[sender] = message
        self._pending.pop(sender, None)
        own = self._own or RunComplete(plan=None)
        answer = RunComplete(plan=own.plan, state=own.state, is_agreed=own.is_agreed, is_answer=True)
        return [] if message.is_answer else [Send(peer=sender, message=answer)]

    def tick(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        if self.next_deadline is None or now < self.next_deadline or self._own is None:
            return []
        self.next_deadline = now + RESEND_SECONDS
        waiting = {*self._missing(self._own.plan, self._others, gone), *self._elsewhere(gone)}
        return [Send(peer=peer, message=self._own) for peer in self._others if peer in waiting]

    def is_over(self, now: float, gone: Collection[PeerId]) -> bool:
        """All living peers are done, or the time of those that are not is over."""
        return self._own is not None and self._is_enough(self._missing(self._own.plan, self._others, gone), now)

    def may_go(self, now: float, gone: Collection[PeerId]) -> bool:
        """And none of them has another state, which it would exchange for that of this peer."""
        return self.is_over(now, gone) and self._is_enough(self._elsewhere(gone), now)

    def _is_enough(self, awaited: Collection[PeerId], now: float) -> bool:
        seconds = PENDING_SECONDS if any(peer in self._pending for peer in awaited) else COMPLETION_SECONDS
        return not awaited or now >= self._began_at + seconds

    def are_all_done(self, plan: Digest, roster: Sequence[PeerId], gone: Collection[PeerId]) -> bool:
        """At least one of the others is done with this last plan, and every other is done or gone."""
        others = [peer for peer in roster if peer != self.me]
        return any(self._is_at(peer, plan) for peer in others) and not self._missing(plan, others, gone)

    def final_state(self, voters: Sequence[PeerId]) -> FinalState | None:
        """Of the run, by the claims of the `voters`, in the order in which they joined: that of more than half of them,
        dead or alive; else one to which a majority agreed on every step, by the word of its holders; else that of most; else
        that of the first. Where no voter has one, by the claims of the others, of which no number is a majority. None where
        nobody has one."""
        done = {peer: claim for peer, claim in self._claims.items() if claim.state is not None}
        states: dict[Digest, list[PeerId]] = {}
        heard = [peer for peer in voters if peer in done]
        for peer in heard or sorted(done):
            state = done[peer].state
            assert state is not None
            states.setdefault(state, []).append(peer)
        if not states:
            return None
        agreed = {state for state, peers in states.items() if any(done[peer].is_agreed for peer in peers)}
        by_majority = {state for state, peers in states.items() if heard and is_majority(len(peers), len(voters))}
        first = max(states, key=lambda state: (state in by_majority, state in agreed, len(states[state])))
        holders = tuple(peer for peer in sorted(done) if done[peer].state == first and peer != self.me)
        return FinalState(
            digest=first, holders=holders, is_agreed=first in by_majority | agreed, is_of_most=first in by_majority
        )

    @property
    def _claims(self) -> Mapping[PeerId, RunComplete]:
        """Of this history."""
        if self._own is None:
            return {}
        return {self.me: self._own} | {peer: claim for peer, claim in self._ended.items() if claim.plan == self._own.plan}

    def _elsewhere(self, gone: Collection[PeerId]) -> list[PeerId]:
        """Living peers that are done, with another state than this peer."""
        own = self._own.state if self._own is not None else None
        claims = {peer: claim.state for peer, claim in self._claims.items()}
        return [peer for peer in self._others if peer not in gone and own is not None and claims.get(peer) not in (None, own)]

    def _missing(self, plan: Digest | None, peers: Sequence[PeerId], gone: Collection[PeerId]) -> list[PeerId]:
        return [peer for peer in peers if not self._is_at(peer, plan) and peer not in gone]

    def _is_at(self, peer: PeerId, plan: Digest | None) -> bool:
        return peer in self._ended and self._ended[peer].plan == plan
