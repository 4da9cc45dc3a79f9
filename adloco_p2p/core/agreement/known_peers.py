"""The names that a peer remembers beyond the roster: heartbeats to them bring back the other side of a partition."""

from collections.abc import Iterable, Iterator, Sequence

from adloco_p2p.core.model.scalars import PeerId

MAX_KNOWN = 4096
"""The largest number of former members, contacts and peers asking to join that are remembered."""
MAX_ELECTORS = 1024
"""The number of former electors that keep their place among the known peers. A name becomes an elector only by rounds of work,
so masses of new names do not crowd them out."""


class KnownPeers:
    """The most recent names of other peers, without this peer itself."""

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
        """Remember the electors of a plan."""
        for peer in peers:
            if peer != self._me:
                self._electors.pop(peer, None)
                self._electors[peer] = None
                self.remember(peer)
        while len(self._electors) > MAX_ELECTORS:
            del self._electors[next(iter(self._electors))]

    def in_turn(self, peers: Sequence[PeerId], turn: int) -> tuple[list[PeerId], list[PeerId]]:
        """Return former electors and other names as two lists; electors first in odd turns, so that no mass of names hides
        them."""
        electors = [peer for peer in peers if peer in self._electors]
        others = [peer for peer in peers if peer not in self._electors]
        return (electors, others) if turn % 2 else (others, electors)
