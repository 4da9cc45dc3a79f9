"""With which states the members came to the end of a run, by their signed claims, and which of these states is that of the run.

A claim is the same for everybody: a member keeps to its first one even where it then takes another state. So claims of two
states by one member cancel each other, and prove themselves whose they are. Two claims of one state are one, the more doubtful.
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
"""Of one peer, about different states: more would prove nothing else."""


class FinalClaims:
    """The claims about one last plan that one peer counts."""

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
        """Of the claims that count: equal on two peers that count the same. It depends neither on the order in which claims
        came, nor on their signatures, of which one content may have several, nor on which two of the claims of a member that
        signed more a peer has."""
        if self._digest is None:
            liars, claims = self.liars, sorted((claim.peer, claim.state or "", claim.is_agreed) for claim in self.all)
            self._digest = canonical.digest((liars, [counted for counted in claims if counted[0] not in liars]))
        return self._digest

    @property
    def are_mixed(self) -> bool:
        """They name several states, or one member claimed two."""
        return bool(self.liars) or len({claims[0].state for claims in self._known.values() if claims} - {None}) > 1

    @property
    def liars(self) -> tuple[PeerId, ...]:
        """Members that claimed two states. One that was killed in between may do so, too."""
        return tuple(peer for peer, claims in sorted(self._known.items()) if len(claims) > 1)

    def take(self, claims: Iterable[FinalClaim]) -> None:
        """Count the claims that are new, about this plan, and signed by a member. No honest message has more than CLAIMS_KEPT
        of one author; further ones are not verified."""
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
        """The state of the run, by the claims of the `voters`, which come in the order in which they joined: the one of more
        than half of them, dead or alive; else one to which a majority agreed on every step, by the word of its holders; else
        the one with most claims; else the first voter's. Where no voter claims a state, the claims of the others decide
        likewise, but no number of them is a majority. None where nobody claims one. `held`: the states that members hold by
        now. A member that took the state of the run over counts for it, too."""
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
    """Beside what is known of its author: another state, or doubt about the same one, as after a restart."""
    if any(other.state == claim.state for other in known):
        return not claim.is_agreed and any(other.state == claim.state and other.is_agreed for other in known)
    return len(known) < CLAIMS_KEPT
