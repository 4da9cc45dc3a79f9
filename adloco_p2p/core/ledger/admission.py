"""Which peers may take a seat: invitations, the seats they gave, signers' statements, and evidence. Pure.

In a run that admits by tickets a newcomer shows an invitation of a signer, made out to its own name. Anybody can check it, now
and later, with nothing but the entries before. A peer that once had a seat comes back without a ticket and uses no second seat:
it is in the ledger already. So revoking an invitation ends no seat that it gave; a ban does.

In a run that anybody may join names cost nothing, so a plan seats few that have shown nothing yet: `core/model/first_seats.py`.
The same holds where a seat costs computing, since nobody can tell by it how many persons there are. There a peer comes back
without paying once it has reported in a seat, unless it was banned since. A name that never reports pays for each turn.
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
    """A statement, or evidence, in the ledger."""

    statement: Decree
    position: int
    """Of the plan that carries it."""


class Admissions:
    """Of one ledger, up to its end. A position is that of a plan in the ledger."""

    def __init__(self, founders: Iterable[PeerId] = ()) -> None:
        self._seats: dict[PeerId, tuple[Invitation, int]] = {}
        """Peers that an invitation let in -> the invitation, and the position."""
        self._reported: dict[PeerId, list[int]] = {peer: [0] for peer in founders}
        """Where seats cost computing: peers that lost seats in which they had reported -> the position of each loss. Founders
        count as if they had lost such a seat before the first plan."""
        self._rulings: dict[Digest, Ruling] = {}
        """By the digest of the statement, in the order of the ledger."""

    def note(self, value: Value, *, position: int, members: Container[PeerId]) -> None:
        """The value is final. `members` had seats before."""
        for request in value.joined:
            if isinstance(request.ticket, Ticket) and request.peer not in members:
                self._seats.setdefault(request.peer, (request.ticket.invitation, position))
        for statement in value.statements:
            self._rulings[canonical.digest_once(statement)] = Ruling(statement=statement, position=position)

    def note_ended(self, seats: Iterable[RosterEntry], *, position: int) -> None:
        """The plan at this position takes these seats."""
        for seat in seats:
            if seat.last_report is not None:
                self._reported.setdefault(seat.peer, []).append(position)

    def truncated(self, length: int) -> "Admissions":
        """Of the first `length` positions."""
        copy = Admissions()
        reported = {peer: [loss for loss in losses if loss < length] for peer, losses in self._reported.items()}
        copy._reported = {peer: losses for peer, losses in reported.items() if losses}
        copy._seats = {peer: seat for peer, seat in self._seats.items() if seat[1] < length}
        copy._rulings = {digest: ruling for digest, ruling in self._rulings.items() if ruling.position < length}
        return copy

    @property
    def rulings(self) -> Sequence[Ruling]:
        """Of all statements and all evidence, oldest first."""
        return tuple(self._rulings.values())

    def has(self, statement: Decree) -> bool:
        return canonical.digest_once(statement) in self._rulings

    def seats_taken(self) -> Counter[PeerId]:
        """Peers that each invitation let in, by its key."""
        return Counter(invitation.key for invitation, _ in self._seats.values())

    def invitations(self) -> Mapping[PeerId, Invitation]:
        """Those that let a peer in, by their keys."""
        return {invitation.key: invitation for invitation, _ in self._seats.values()}

    def invited_by(self, peer: PeerId) -> PeerId | None:
        """The key of the invitation that let the peer in."""
        seat = self._seats.get(peer)
        return None if seat is None else seat[0].key

    def has_reported(self, peer: PeerId) -> bool:
        """Whether the peer reported in a seat that it lost, and was not banned and let in again since."""
        losses, lifted = self._reported.get(peer), self.lifted().get(peer)
        return losses is not None and (lifted is None or lifted.position < losses[-1])

    def bans(self) -> Mapping[PeerId, Ruling]:
        """Peers that are banned, and by which statement or evidence."""
        return _in_force(self._rulings.values(), begins="ban", ends="unban")

    def lifted(self) -> Mapping[PeerId, Ruling]:
        """Peers and the last statement that let each in again: for what it did before nobody is banned once more."""
        return _in_force(self._rulings.values(), begins="unban", ends=None)

    def revoked(self) -> Mapping[PeerId, Ruling]:
        """Keys of invitations that let nobody in any more."""
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
    """As a value lists them."""
    return sorted(statements, key=lambda statement: (statement.serial, canonical.digest_once(statement)))


def newly_banned(statements: Iterable[Decree], parent: RoundPlan) -> tuple[PeerId, ...]:
    """Members that lose their seats by these statements, which are in order."""
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
    """Those of the requests that the plan after `parent`, without `gone`, seats, sorted by peer: at most `room`, none with a
    `problem`, and no more newcomers than there are first seats. Former members that served their probation go first, then
    `members`, then newcomers; among equals a lot decides, since a name can be chosen. No more are judged than that takes: a
    stranger can ask under as many names as are remembered, and a judgement may verify two signatures."""
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
    """Why the plan after `parent`, without `gone`, cannot seat all of them; empty where it can."""
    newcomers, free = len(frozenset(joined) - served_before(parent)), free_first_seats(parent, gone)
    return f"{newcomers} newcomers, and there are {free} first seats" if newcomers > free else ""


class Door:
    """Lets join requests through, one after another, as the next plan would. `admissions`, `members`, all that ever had a seat,
    and `digests` of all plans are of the ledger that ends with `parent`; `statements` take effect with the same plan.
    `may_check`: whether a proof of work that was not seen before may be checked now, which takes 10 ms."""

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
        """Why the peer is not let in; empty where it is. Takes the seat of the invitation."""
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
        """The least that a peer must be able to follow: that of the next plan, unless an elector withdraws the upgrade. During
        the notice nobody is kept out: a member that was away for a round can come back, and has its say."""
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
        """Whether the peer, which has no seat, gets one for a proof of work only."""
        return self._parent.price > 0 and peer not in self._signers and not self._admissions.has_reported(peer)

    def puzzle(self, peer: PeerId, *, round: int) -> Puzzle | None:
        """What the peer has to solve for a seat in the next plan, by the plan of this round; None where that counts no more, or
        not yet. What was solved before a ban ended does not count after it."""
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
