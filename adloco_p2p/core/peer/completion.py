"""The end of a run: a peer with the finished model stays until the others have it, as they may still need something of it."""

from collections.abc import Collection, Sequence

from adloco_p2p.core.model.events import Effect, Send
from adloco_p2p.core.model.messages import RunComplete
from adloco_p2p.core.model.scalars import Digest, PeerId

RESEND_SECONDS = 2.0
"""`RunComplete` is resent after so long, to peers that have not sent it for the same plan."""
COMPLETION_SECONDS = 30.0
"""After so long this peer stops even if others are not done, and have not answered that they still come."""
PENDING_SECONDS = 300.0
"""The same if one has answered so: it may still fetch a state. None holds the others up for longer."""


class CompletionBarrier:
    """`begin` once this peer is done, `withdraw` where another history wins after that; it may go when `is_over`."""

    def __init__(self, me: PeerId) -> None:
        self.me = me
        self.next_deadline: float | None = None
        self._plan: Digest | None = None
        """The last plan that this peer has carried out."""
        self._ended: dict[PeerId, Digest] = {}
        """Peers that are done, and with which last plan: one of another history is not done in this one."""
        self._others: tuple[PeerId, ...] = ()
        self._began_at = 0.0
        self._pending: dict[PeerId, None] = {}
        """Peers that answered that they are not done; the last message of each counts."""

    def begin(self, plan: Digest, roster: Sequence[PeerId], now: float) -> list[Effect]:
        """Send `RunComplete` to all others."""
        self._plan = plan
        self._others = tuple(peer for peer in roster if peer != self.me)
        self._began_at = now
        self.next_deadline = now + RESEND_SECONDS
        return [Send(peer=peer, message=RunComplete(plan=plan)) for peer in self._others]

    def withdraw(self) -> None:
        """This peer is not done any more."""
        self._plan = self.next_deadline = None

    def received(self, sender: PeerId, message: RunComplete) -> list[Effect]:
        if message.plan is None:
            self._pending[sender] = None
            self._ended.pop(sender, None)
            return []
        self._ended[sender] = message.plan
        self._pending.pop(sender, None)
        return [] if message.is_answer else [Send(peer=sender, message=RunComplete(plan=self._plan, is_answer=True))]

    def tick(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        if self.next_deadline is None or now < self.next_deadline:
            return []
        self.next_deadline = now + RESEND_SECONDS
        missing = self._missing(self._plan, self._others, gone)
        return [Send(peer=peer, message=RunComplete(plan=self._plan)) for peer in missing]

    def is_over(self, now: float, gone: Collection[PeerId]) -> bool:
        """All living peers are done, or the time of those that are not is over."""
        if self._plan is None:
            return False
        missing = self._missing(self._plan, self._others, gone)
        seconds = PENDING_SECONDS if any(peer in self._pending for peer in missing) else COMPLETION_SECONDS
        return not missing or now >= self._began_at + seconds

    def are_all_done(self, plan: Digest, roster: Sequence[PeerId], gone: Collection[PeerId]) -> bool:
        """At least one of the others is done with this last plan, and every other is done or gone."""
        others = [peer for peer in roster if peer != self.me]
        return any(self._ended.get(peer) == plan for peer in others) and not self._missing(plan, others, gone)

    def _missing(self, plan: Digest | None, peers: Sequence[PeerId], gone: Collection[PeerId]) -> list[PeerId]:
        return [peer for peer in peers if self._ended.get(peer) != plan and peer not in gone]
