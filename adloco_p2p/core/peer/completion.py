"""The end of a run: a peer with the finished model stays until the others have it, as they may still need something of it."""

from collections.abc import Collection, Sequence

from adloco_p2p.core.model.events import Effect, Send
from adloco_p2p.core.model.messages import RunComplete
from adloco_p2p.core.model.types import PeerId

RESEND_SECONDS = 2.0
"""`RunComplete` is resent after so long, to peers that have not sent it."""
COMPLETION_SECONDS = 30.0
"""After so long this peer stops even if others are not done, and do not say that they still come."""
PENDING_SECONDS = 300.0
"""The same if one says so: it may still fetch a state. None holds the others up for longer."""


class CompletionBarrier:
    """`begin` once this peer is done; it may go when `is_over`."""

    def __init__(self, me: PeerId) -> None:
        self.me = me
        self.next_deadline: float | None = None
        self._ended: dict[PeerId, None] = {}
        self._others: tuple[PeerId, ...] = ()
        self._began_at: float | None = None
        self._pending: dict[PeerId, None] = {}
        """Peers that answered that they are not done; the last word of each counts."""

    def begin(self, roster: Sequence[PeerId], now: float) -> list[Effect]:
        """Send `RunComplete` to all others."""
        self._others = tuple(peer for peer in roster if peer != self.me)
        self._began_at = now
        self.next_deadline = now + RESEND_SECONDS
        return [Send(peer=peer, message=RunComplete()) for peer in self._others]

    def received(self, sender: PeerId, message: RunComplete) -> list[Effect]:
        if message.is_answer and message.is_pending:
            self._pending[sender] = None
            return []
        self._ended[sender] = None
        if message.is_answer:
            return []
        return [Send(peer=sender, message=RunComplete(is_answer=True, is_pending=self._began_at is None))]

    def tick(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        if self.next_deadline is None or now < self.next_deadline:
            return []
        self.next_deadline = now + RESEND_SECONDS
        return [Send(peer=peer, message=RunComplete()) for peer in self._missing(self._others, gone)]

    def is_over(self, now: float, gone: Collection[PeerId]) -> bool:
        """All living peers are done, or the time of those that are not is over."""
        if self._began_at is None:
            return False
        missing = self._missing(self._others, gone)
        seconds = PENDING_SECONDS if any(peer in self._pending for peer in missing) else COMPLETION_SECONDS
        return not missing or now >= self._began_at + seconds

    def are_all_done(self, roster: Sequence[PeerId], gone: Collection[PeerId]) -> bool:
        """At least one of the others is done, and every other is done or gone."""
        others = [peer for peer in roster if peer != self.me]
        return any(peer in self._ended for peer in others) and not self._missing(others, gone)

    def _missing(self, peers: Sequence[PeerId], gone: Collection[PeerId]) -> list[PeerId]:
        return [peer for peer in peers if peer not in self._ended and peer not in gone]
