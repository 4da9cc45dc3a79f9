"""The members' signed claims of the states with which they came to the end of a run, and which of these states is that of the
run.

A member makes the same claim to everybody and keeps to its first one, even if it then takes another state. So two claims of
different states cancel each other and prove who signed them; of two claims of one state the more doubtful counts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.ledger_entry import Verify
from adloco_p2p.core.model.messages import FinalClaim
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.peer.plan_book import FinalState

CLAIMS_KEPT = 2
"""Claims kept of one peer, about different states; more would prove nothing new."""


class FinalClaims:
    """The claims about one last plan, as one peer counts them."""

    def __init__(self, own: FinalClaim, roster: Iterable[PeerId], verify: Verify) -> None:
        self.own = own
        self._verify = verify
        self._known: dict[PeerId, tuple[FinalClaim, ...]] = dict.fromkeys(roster, ()) | {own.peer: (own,)}
        self._digest: Digest | None = None

    @property
    def all(self) -> tuple[FinalClaim, ...]:
        return tuple(claim for claims in self._known.values() for claim in claims)

    @property
    def digest(self) -> Digest:
        """Digest of the claims that count, equal on two peers that count the same. It does not depend on the order of arrival,
        on signatures, of which one content may have several, or on which two claims a peer has of a member that signed more."""
        if self._digest is None:
            liars, claims = self.liars, sorted((claim.peer, claim.state or "", claim.is_agreed) for claim in self.all)
            self._digest = canonical.digest((liars, [counted for counted in claims if counted[0] not in liars]))
        return self._digest

    @property
    def are_mixed(self) -> bool:
        """The claims name several states, or one member claimed two."""
        return bool(self.liars) or len({claims[0].state for claims in self._known.values() if claims} - {None}) > 1

    @property
    def liars(self) -> tuple[PeerId, ...]:
        """Members that claimed two states; that includes one that was killed in between."""
        return tuple(peer for peer, claims in sorted(self._known.items()) if len(claims) > 1)

    def take(self, claims: Iterable[FinalClaim]) -> None:
        """Count the claims that are new, about this plan, and signed by a member. No honest message has more than CLAIMS_KEPT
        claims of one author; further ones are not verified."""
        verified: Counter[PeerId] = Counter()
        for claim in claims:
            known = self._known.get(claim.peer)
            if known is None or claim.plan != self.own.plan or not _is_news(claim, known):
                continue
            verified[claim.peer] += 1
            if verified[claim.peer] <= CLAIMS_KEPT and self._verify(claim.peer, claim.payload, claim.signature):
                self._known[claim.peer] = (*(other for other in known if other.state != claim.state), claim)
                self._digest = None

    def final_state(self, voters: Sequence[PeerId], held: Mapping[PeerId, Digest | None]) -> FinalState | None:
        """Return the state of the run by the claims of the `voters`, which come in the order in which they joined; None if
        nobody claims a state.

        It is the state of more than half of the voters, dead or alive; else one to which, by a holder's claim, a majority
        agreed on every step; else the one with most claims; else the first voter's. If no voter claims a state, the claims of
        the others decide likewise, but no number of them is a majority. `held` are the states that members hold by now: a
        member that took over the state of the run counts for it, too.
        """
        claims = {peer: known[0] for peer, known in self._known.items() if len(known) == 1 and known[0].state is not None}
        states: dict[Digest, list[PeerId]] = {}
        counted = [peer for peer in voters if peer in claims]
        for peer in counted or sorted(claims):
            state = claims[peer].state
            assert state is not None
            states.setdefault(state, []).append(peer)
        if not states:
            return None
        agreed = {state for state, peers in states.items() if any(claims[peer].is_agreed for peer in peers)}
        by_majority = {state for state, peers in states.items() if counted and is_majority(len(peers), len(voters))}
        first = max(states, key=lambda state: (state in by_majority, state in agreed, len(states[state])))
        holders = [peer for peer in sorted(held) if held[peer] == first]
        liars = {*self.liars} & {*voters}
        num_voters = len({*states[first], *holders} & {*voters} - liars)
        is_of_most = first in by_majority or (bool(counted) and is_majority(num_voters, len(voters)))
        return FinalState(
            digest=first,
            holders=tuple(peer for peer in holders if peer != self.own.peer),
            is_agreed=is_of_most or (first in agreed and not liars),
            is_of_most=is_of_most,
            is_disputed=bool(liars) and not is_of_most,
        )


def _is_news(claim: FinalClaim, known: Sequence[FinalClaim]) -> bool:
    """Return whether the claim adds to its author's known ones: another state, or doubt about the same one, as after a
    restart."""
    if any(other.state == claim.state for other in known):
        return not claim.is_agreed and any(other.state == claim.state and other.is_agreed for other in known)
    return len(known) < CLAIMS_KEPT
