"""Names that a peer remembers beyond the roster: heartbeats to them bring back the other side of a partition."""

from collections.abc import Iterable, Iterator, Sequence

from adloco_p2p.core.model.scalars import PeerId

MAX_KNOWN = 4096
"""Former members and contacts that are remembered, and peers that ask to join."""
MAX_ELECTORS = 1024
"""Former electors that keep their place among them: a name becomes one by rounds of work, so names without number do not crowd
them out."""


class KnownPeers:
    """Without this peer itself; the last ones if there are many."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._names: dict[PeerId, None] = {}
        self._electors: dict[PeerId, None] = {}

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._names)

    def remember(self, peer: PeerId) -> None:
        if peer == self._me:
            return
        self._names.pop(peer, None)
        self._names[peer] = None
        while len(self._names) > MAX_KNOWN:
            del self._names[next(name for name in self._names if name not in self._electors)]

    def learn_electors(self, peers: Iterable[PeerId]) -> None:
        """A plan lets these decide."""
        for peer in peers:
            if peer != self._me:
                self._electors.pop(peer, None)
                self._electors[peer] = None
                self.remember(peer)
        while len(self._electors) > MAX_ELECTORS:
            del self._electors[next(iter(self._electors))]

    def in_turn(self, peers: Sequence[PeerId], turn: int) -> tuple[list[PeerId], list[PeerId]]:
        """Former electors and other names; in odd turns the electors first, so that no number of names hides them."""
        electors = [peer for peer in peers if peer in self._electors]
        others = [peer for peer in peers if peer not in self._electors]
        return (electors, others) if turn % 2 else (others, electors)
