"""The reports that a peer holds for the next few plans: of members, signed by their authors, and bounded in number."""

from collections.abc import Container, Iterable, Sequence

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import SignedReport, Verify
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.report_form import is_short
from adloco_p2p.core.model.scalars import Digest, PeerId

MAX_VERSIONS = 4
"""The number of different reports of one peer and round that are kept unasked. A peer may train a round again on another
history, and a liar may sign two; a value with any of them can be checked."""


class ReportPool:
    """The held reports by digest, and by round and peer in the order in which they came."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._by_digest: dict[Digest, SignedReport] = {}
        self._rounds: dict[int, dict[PeerId, list[Digest]]] = {}
        self._window = range(0)
        self._members: frozenset[PeerId] = frozenset()

    def move(self, window: range, members: Iterable[PeerId]) -> None:
        """Keep reports of these rounds and peers from now on; drop those of older rounds."""
        self._window, self._members = window, frozenset(members)
        for round in sorted(self._rounds):
            if round < window.start:
                for digests in self._rounds.pop(round).values():
                    for digest in digests:
                        self._by_digest.pop(digest, None)

    def keep(self, signed: SignedReport, *, named: Container[Digest] = ()) -> bool:
        """Keep a report that is of interest, new, short and signed by its author; return whether it is. A report among `named`,
        which values that may be valid name, always gets a place: a liar may give each peer other versions, so that no peer
        could check the value of another."""
        report = signed.report
        if report.round not in self._window or report.peer not in self._members:
            return False
        digest = canonical.digest_once(signed)
        digests = self._rounds.setdefault(report.round, {}).setdefault(report.peer, [])
        if digest in self._by_digest or (len(digests) >= MAX_VERSIONS and digest not in named):
            return False
        if not is_short(signed) or not self._verify(report.peer, signed.payload, signed.signature):
            return False
        if len(digests) >= MAX_VERSIONS:
            self._make_room(digests, named)
        digests.append(digest)
        self._by_digest[digest] = signed
        return True

    def _make_room(self, digests: list[Digest], named: Container[Digest]) -> None:
        """Drop the newest version that no value names, if there is one. `Values` bounds the number of named ones."""
        unnamed = next((digest for digest in reversed(digests) if digest not in named), None)
        if unnamed is not None:
            digests.remove(unnamed)
            del self._by_digest[unnamed]

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._by_digest

    def num_versions(self, report: Report) -> int:
        """Return the number of held reports of the same peer and round."""
        return len(self._rounds.get(report.round, {}).get(report.peer, ()))

    def get(self, digests: Sequence[Digest]) -> tuple[SignedReport, ...]:
        """Return the held reports among the digests, in order."""
        return tuple(self._by_digest[digest] for digest in digests if digest in self._by_digest)

    def about(self, round: int, plan: Digest) -> dict[PeerId, Digest]:
        """Return the first report that came of each peer on the round of this plan, sorted by peer."""
        found: dict[PeerId, Digest] = {}
        for peer, digests in sorted(self._rounds.get(round, {}).items()):
            for digest in digests:
                if self._by_digest[digest].report.plan == plan:
                    found.setdefault(peer, digest)
        return found
