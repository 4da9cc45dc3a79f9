"""Who takes part when an attempt at an average is repeated, and who says so."""

from collections.abc import Collection, Iterable, Sequence

from adloco_p2p.core.model.types import PeerId


class RetryMembers:
    """Of one round's contributors, as one of its hosts sees them. `gone` are those whom the membership counts as gone."""

    def __init__(self, *, me: PeerId, contributors: Sequence[PeerId], clients: Collection[PeerId]) -> None:
        """`clients`: hosts in client mode. Others, whom everybody hears, lead before them."""
        self.suspects: dict[PeerId, None] = {}
        """Whom a retry leaves out: who spoiled an attempt here, and whom others named."""
        self.locally_blamed: dict[PeerId, None] = {}
        """The first kind only: nobody here averages with them again in this round, whoever leads."""
        self._me = me
        self._contributors = tuple(contributors)
        self._clients = frozenset(clients)
        self._skipped_leaders: dict[PeerId, None] = {}

    def left(self, gone: Collection[PeerId]) -> tuple[PeerId, ...]:
        return tuple(p for p in self._contributors if p == self._me or (p not in gone and p not in self.suspects))

    def leader(self, gone: Collection[PeerId]) -> PeerId:
        """Says who takes part in the next attempt: the smallest id of those that are left and were not silent as leaders."""
        candidates = [peer for peer in self.left(gone) if peer == self._me or peer not in self._skipped_leaders]
        return min(candidates, key=lambda peer: (peer in self._clients, peer))

    def skip_leader(self, leader: PeerId) -> None:
        self._skipped_leaders[leader] = None

    def suspect(self, peers: Iterable[PeerId]) -> None:
        self.suspects.update(dict.fromkeys(peer for peer in peers if peer != self._me))

    def blame_locally(self, peers: Iterable[PeerId]) -> None:
        """They spoiled an attempt in our own sight."""
        self.suspect(peers)
        self.locally_blamed.update(dict.fromkeys(peer for peer in peers if peer != self._me))

    def accused_by(self, teller: PeerId, peers: Sequence[PeerId], gone: Collection[PeerId]) -> None:
        """`teller` waited for these in vain. Half of those who are left and more nobody drops on one host's word; whoever names
        itself is believed."""
        accused = [peer for peer in peers if peer in self._contributors and peer != teller]
        if 2 * len(accused) >= len(self.left(gone)):
            accused = []
        self.suspect([*accused, teller] if teller in peers and teller in self._contributors else accused)
