"""Which peers may take a seat, by invitations, the seats that they gave, signers' statements, and evidence.

In a run that admits by tickets a newcomer shows a signer's invitation, made out to its own name. Anybody can check it, now and
later, by the earlier entries alone. A peer that once had a seat comes back without a ticket and uses no second seat, because it
is in the ledger already. So revoking an invitation ends no seat that it gave; a ban does.

In a run that anybody may join names cost nothing, so a plan seats few peers that have shown nothing yet
(`core/model/first_seats.py`). The same holds if a seat costs computing, which does not show how many persons there are. In such
a run a peer comes back without paying once it has reported in a seat, unless it was banned since. A name that never reports
pays for each turn.
"""

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from adloco_p2p.core.ledger.proof_of_work import PROOF_ROUNDS, Puzzle
from adloco_p2p.core.ledger.signers import signers_after
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.first_seats import free_first_seats, served_before
from adloco_p2p.core.model.ledger_entry import (
    JOIN_ROUNDS,
    Decree,
    Invitation,
    JoinRequest,
    ProofOfWork,
    Ticket,
    Value,
    Verify,
)
from adloco_p2p.core.model.measurers import lot as drawn
from adloco_p2p.core.model.plan import RoundPlan, roster_of
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import Digest, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A statement or evidence in the ledger."""

    statement: Decree
    position: int
    """The position of the plan that carries it."""


class Admissions:
    """The invitations, seats and rulings of one ledger, up to its end. A position is that of a plan in the ledger."""

    def __init__(self, founders: Iterable[PeerId] = ()) -> None:
        self._seats: dict[PeerId, tuple[Invitation, int]] = {}
        """The invitation that let each invited peer in, and the position of its seat."""
        self._reported: dict[PeerId, list[int]] = {peer: [0] for peer in founders}
        """If seats cost computing: the positions at which each peer lost a seat in which it had reported. Founders count as if
        they had lost such a seat before the first plan."""
        self._rulings: dict[Digest, Ruling] = {}
        """The rulings by the digest of their statement, in the order of the ledger."""

    def note(self, value: Value, *, position: int, members: Container[PeerId]) -> None:
        """Note a final value. `members` are the peers that had seats before."""
        for request in value.joined:
            if isinstance(request.ticket, Ticket) and request.peer not in members:
                self._seats.setdefault(request.peer, (request.ticket.invitation, position))
        for statement in value.statements:
            self._rulings[canonical.digest_once(statement)] = Ruling(statement=statement, position=position)

    def note_ended(self, seats: Iterable[RosterEntry], *, position: int) -> None:
        """Note the seats that the plan at this position takes away."""
        for seat in seats:
            if seat.last_report is not None:
                self._reported.setdefault(seat.peer, []).append(position)

    def truncated(self, length: int) -> "Admissions":
        """Return a copy of the first `length` positions."""
        copy = Admissions()
        reported = {peer: [loss for loss in losses if loss < length] for peer, losses in self._reported.items()}
        copy._reported = {peer: losses for peer, losses in reported.items() if losses}
        copy._seats = {peer: seat for peer, seat in self._seats.items() if seat[1] < length}
        copy._rulings = {digest: ruling for digest, ruling in self._rulings.items() if ruling.position < length}
        return copy

    @property
    def rulings(self) -> Sequence[Ruling]:
        """All statements and all evidence in the ledger, oldest first."""
        return tuple(self._rulings.values())

    def has(self, statement: Decree) -> bool:
        return canonical.digest_once(statement) in self._rulings

    def seats_taken(self) -> Counter[PeerId]:
        """Return the number of peers that each invitation let in, by its key."""
        return Counter(invitation.key for invitation, _ in self._seats.values())

    def invitations(self) -> Mapping[PeerId, Invitation]:
        """Return the invitations that let a peer in, by their keys."""
        return {invitation.key: invitation for invitation, _ in self._seats.values()}

    def invited_by(self, peer: PeerId) -> PeerId | None:
        """Return the key of the invitation that let the peer in."""
        seat = self._seats.get(peer)
        return None if seat is None else seat[0].key

    def has_reported(self, peer: PeerId) -> bool:
        """Return whether the peer reported in a seat that it lost, and had no ban lifted since."""
        losses, lifted = self._reported.get(peer), self.lifted().get(peer)
        return losses is not None and (lifted is None or lifted.position < losses[-1])

    def bans(self) -> Mapping[PeerId, Ruling]:
        """Return the banned peers, with the ruling that banned each."""
        return _in_force(self._rulings.values(), begins="ban", ends="unban")

    def lifted(self) -> Mapping[PeerId, Ruling]:
        """Return the last ruling that lifted a ban of each peer, which is not banned again for what it did before."""
        return _in_force(self._rulings.values(), begins="unban", ends=None)

    def revoked(self) -> Mapping[PeerId, Ruling]:
        """Return the revocations by the keys of their invitations, which let nobody in any more."""
        return _in_force(self._rulings.values(), begins="revoke", ends=None)


def _in_force(rulings: Iterable[Ruling], *, begins: str, ends: str | None) -> dict[PeerId, Ruling]:
    found: dict[PeerId, Ruling] = {}
    for ruling in rulings:
        if ruling.statement.action == begins:
            found[ruling.statement.subject] = ruling
        elif ruling.statement.action == ends:
            found.pop(ruling.statement.subject, None)
    return found


# --- statements ------------------------------------------------------------------------------------------------------


def in_order(statements: Iterable[Decree]) -> list[Decree]:
    """Return the statements in the order in which a value lists them."""
    return sorted(statements, key=lambda statement: (statement.serial, canonical.digest_once(statement)))


def newly_banned(statements: Iterable[Decree], parent: RoundPlan) -> tuple[PeerId, ...]:
    """Return the members that lose their seats by these statements, which must be in order."""
    bans: dict[PeerId, None] = {}
    for statement in statements:
        if statement.action == "ban":
            bans[statement.subject] = None
        elif statement.action == "unban":
            bans.pop(statement.subject, None)
    return tuple(peer for peer in roster_of(parent) if peer in bans)


# --- join requests ---------------------------------------------------------------------------------------------------


def seated_first(
    requests: Iterable[JoinRequest],
    *,
    parent: RoundPlan,
    gone: Collection[PeerId],
    members: Container[PeerId],
    room: int,
    lot: str,
    problem: Callable[[JoinRequest], str],
) -> tuple[JoinRequest, ...]:
    """Return the requests that the plan after `parent`, without `gone`, seats, sorted by peer: at most `room`, none with a
    `problem`, and no more newcomers than there are first seats. Former members that served their probation go first, then
    `members`, then newcomers; among equals a lot decides, since names can be chosen. No more requests are judged than needed: a
    stranger can ask under as many names as are remembered, and one judgement may verify two signatures."""
    served, first_seats = served_before(parent), free_first_seats(parent, gone)

    def place(request: JoinRequest) -> tuple[bool, bool, bytes]:
        return request.peer not in served, request.peer not in members, drawn(lot, request.peer)

    chosen: list[JoinRequest] = []
    for request in sorted(requests, key=place):
        is_newcomer = request.peer not in served
        if len(chosen) >= room or (is_newcomer and first_seats <= 0):
            break  # newcomers come last
        if not problem(request):
            chosen.append(request)
            first_seats -= is_newcomer
    return tuple(sorted(chosen, key=lambda request: request.peer))


def crowding(joined: Iterable[PeerId], parent: RoundPlan, gone: Collection[PeerId]) -> str:
    """Return why the plan after `parent`, without `gone`, cannot seat all of `joined`; empty if it can."""
    newcomers, free = len(frozenset(joined) - served_before(parent)), free_first_seats(parent, gone)
    return f"{newcomers} newcomers, and there are {free} first seats" if newcomers > free else ""


class Door:
    """The judge of join requests, one after another, as the next plan admits them. `admissions`, `members`, which are all peers
    that ever had a seat, and the `digests` of all plans belong to the ledger that ends with `parent`; `statements` take effect
    with the next plan. `may_check` returns whether a proof of work that was not seen before may be checked now, which takes
    10 ms."""

    def __init__(
        self,
        *,
        parent: RoundPlan,
        admissions: Admissions,
        members: Container[PeerId],
        digests: Sequence[Digest],
        statements: Sequence[Decree],
        verify: Verify,
        may_check: Callable[[], bool] = lambda: True,
    ) -> None:
        self._parent = parent
        self._admissions = admissions
        self._members = members
        self._digests = digests
        self._verify = verify
        self._may_check = may_check
        self._taken = admissions.seats_taken()
        self._revoked = admissions.revoked()
        self._banned = {*admissions.bans(), *(s.subject for s in statements if s.action == "ban")}
        self._signers = signers_after(parent.signers, statements)

    def problem(self, request: JoinRequest) -> str:
        """Return why the peer is not let in; empty if it is, in which case it takes a seat of its invitation."""
        if request.peer in self._banned:
            return f"{request.peer} is banned from this run"
        if self._parent.round > request.round + JOIN_ROUNDS:
            return f"the request of {request.peer} is of round {request.round}, and this is round {self._parent.round}"
        needed, newest = self.protocol_needed, request.capacity.newest_protocol
        if newest < needed:
            return f"{request.peer} can follow protocol {newest} at most, and the run needs {needed}"
        if self._parent.price:
            return self._problem_of_proof(request) if self.must_pay(request.peer) else ""
        if isinstance(request.ticket, ProofOfWork):
            return f"{request.peer} shows a proof of work, and no seat of this run costs one"
        if not self._parent.is_ticketed or request.peer in self._signers or request.peer in self._members:
            return ""
        if not isinstance(request.ticket, Ticket):
            return f"{request.peer} has no invitation"
        wrong = self._problem_of(request.peer, request.ticket)
        if not wrong:
            self._taken[request.ticket.invitation.key] += 1
        return wrong

    @property
    def protocol_needed(self) -> int:
        """The oldest protocol that a peer must be able to follow: that of the next plan, unless an elector withdraws the
        upgrade. During the notice nobody is kept out: a member that was away for a round can come back and have its say."""
        return self._parent.protocol + (self._parent.upgrade_round == self._parent.round + 1)

    def _problem_of(self, peer: PeerId, ticket: Ticket) -> str:
        invitation, round = ticket.invitation, self._parent.round + 1
        if invitation.run != self._parent.run or invitation.signer not in self._signers:
            return "the invitation is not by a signer of this run"
        if round > invitation.last_round:
            return f"the invitation was good until round {invitation.last_round}, and this is round {round}"
        if invitation.key in self._revoked:
            return "the invitation was revoked"
        if self._taken[invitation.key] >= invitation.seats:
            return f"no seat of the invitation is left: it has {invitation.seats}"
        if not self._verify(invitation.signer, invitation.payload, invitation.signature):
            return "the invitation is not signed by its signer"
        if not self._verify(invitation.key, ticket.payload(peer), ticket.signature):
            return f"the ticket is not made out to {peer} by the key of its invitation"
        return ""

    # --- proofs of work ---

    def must_pay(self, peer: PeerId) -> bool:
        """Return whether the peer, which has no seat, gets one only for a proof of work."""
        return self._parent.price > 0 and peer not in self._signers and not self._admissions.has_reported(peer)

    def puzzle(self, peer: PeerId, *, round: int) -> Puzzle | None:
        """Return what the peer has to solve for a seat in the next plan, by the plan of this round; None if that plan is too
        old or still to come. A solution from before a ban was lifted does not count after it."""
        parent, lifted = self._parent, self._admissions.lifted().get(peer)
        position = len(self._digests) - 1 - (parent.round - round)
        oldest = 0 if lifted is None else lifted.position
        if round > parent.round or parent.round - round >= PROOF_ROUNDS or position < oldest:
            return None
        return Puzzle(run=parent.run, peer=peer, plan=self._digests[position], round=round, price=parent.price)

    def _problem_of_proof(self, request: JoinRequest) -> str:
        proof, peer = request.ticket, request.peer
        if not isinstance(proof, ProofOfWork):
            return f"{peer} has no proof of work"
        puzzle = self.puzzle(peer, round=proof.round)
        if puzzle is None:
            return f"the proof of work of {peer} is of round {proof.round}, and this is round {self._parent.round}"
        if not puzzle.is_checked(proof.nonce) and not self._may_check():
            return f"the proof of work of {peer} was not checked: too many are shown"
        return (
            ""
            if puzzle.is_solved_by(proof.nonce)
            else f"the nonce {proof.nonce} is no proof of work of {peer} for round {proof.round}"
        )
