"""Attacks on a run whose seats cost computing: floods of false proofs of work, and proofs that are borrowed, saved up, shown
everywhere, or of a banned name. Scenarios of the simulated world, at a price of six attempts.

In each of them an honest newcomer pays and asks for a seat. An attempt takes microseconds here, not 10 ms (`QUICK`), so the
cost of the peers is counted in attempts. Each machine remembers the proofs that it checked itself, as a process of its own
does.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, islice
from random import Random
from types import MappingProxyType

from adloco_p2p.core.agreement.consensus import STRANGER_CHECKS, STRANGER_CHECKS_PER_SECOND
from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.ledger import proof_of_work
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.proof_of_work import PROOF_ROUNDS, Puzzle
from adloco_p2p.core.model.first_seats import FIRST_SEATS
from adloco_p2p.core.model.ledger_entry import JoinRequest, ProofOfWork
from adloco_p2p.core.model.messages import Heartbeat
from adloco_p2p.core.model.outcomes import Outcome as Effects
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import LARGEST_COUNT, Digest, PeerId
from adloco_p2p.sim.adversary import Liar, Outgoing, Sent, at_once, stranger_names
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of, sign
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.newcomers import SEAT_PLANS
from benchmarks.adversary import strangers
from benchmarks.adversary.arena import LOSS, Arena, Result, Setting, fight
from benchmarks.adversary.invitations import knocking, statement
from benchmarks.adversary.scenario import LIAR, Outcome, Play, Scenario, judged, let_in, rounds_where
from benchmarks.adversary.strangers import Aim, Deed, Strangers
from benchmarks.adversary.variants import PARTED

QUICK = 2, 1
"""N and r of scrypt: the smallest that there are."""
PAID = Setting(admission="work")
LONG = replace(PAID, rounds=PROOF_ROUNDS + 12)
NEWCOMER, NEWCOMER_AT = name_of(PAID.peers), 35.0
"""An honest newcomer, and when it comes, in virtual seconds."""
FLOOD_SECONDS = 80.0
FLOODED = replace(PAID, faults=Faults(loss=LOSS, delay_seconds=(0.02, 0.5), faults_end_at=FLOOD_SECONDS))
"""The messages of one wake arrive one after another until the next, so no peer is without the flood for long."""
MOST_TRIED = 64
"""The solutions of a puzzle that are tried, one of which is likely to solve no other."""
PROOFS_PER_BEAT = 4
STOCK = 64
"""The false proofs that a flood shows, the newest ones: a peer spends nothing again on a proof that it found false."""
GHOST = stranger_names(2)[1]
"""The name under which a member passes on false proofs."""


# --- proofs ----------------------------------------------------------------------------------------------------------


def puzzle_of(ledger: Ledger, name: PeerId, *, back: int = 0) -> Puzzle:
    """Return what the name has to solve by the newest plan, by the plan `back` plans before it, or by the first one."""
    plan, back = ledger.plans[-1], min(back, len(ledger.digests) - 1)
    return Puzzle(run=plan.run, peer=name, plan=ledger.digests[-1 - back], round=plan.round - back, price=plan.price)


def solution(puzzle: Puzzle, *, others: Collection[Puzzle] = ()) -> ProofOfWork:
    """Return a solution that solves none of the others, unless they are the same puzzle."""
    found = (nonce for nonce in count() if puzzle.attempt(nonce))
    for nonce in islice(found, MOST_TRIED):
        if not any(other.attempt(nonce) for other in others):
            break
    return ProofOfWork(round=puzzle.round, nonce=nonce)


def none_at_all(_at: Aim) -> None:
    return None


def forged(at: Aim) -> ProofOfWork:
    return false_proof(puzzle_of(at.ledger, at.me), at.port.random)


def false_proof(puzzle: Puzzle, chance: Random) -> ProofOfWork:
    nonces = count(chance.randrange(LARGEST_COUNT // 2))
    return ProofOfWork(round=puzzle.round, nonce=next(nonce for nonce in nonces if not puzzle.attempt(nonce)))


def foreign(at: Aim) -> ProofOfWork:
    """Return a proof that was found for another name."""
    own = puzzle_of(at.ledger, at.me)
    other = next(name for name in at.port.names if name != at.me)
    return solution(replace(own, peer=other), others=[own])


def of_another_run(at: Aim) -> ProofOfWork:
    own = puzzle_of(at.ledger, at.me)
    return solution(replace(own, run=Digest("12" * 32)), others=[own])


def of_an_old_plan(at: Aim) -> ProofOfWork:
    """Return a proof that was found for the first plan, and is shown as one for the newest."""
    own = puzzle_of(at.ledger, at.me)
    return solution(replace(own, plan=at.ledger.digests[0]), others=[own]) if own.round else forged(at)


def of_a_round_to_come(at: Aim) -> ProofOfWork:
    """Return a proof so far ahead that no peer has its plan; for the next plan any nonce may be a proof by luck."""
    return replace(forged(at), round=at.plan.round + PROOF_ROUNDS)


def borrowed(at: Aim) -> ProofOfWork:
    """Return the proof of a member, as the ledger has it."""
    shown = [join.ticket for entry in at.ledger.entries for join in entry.value.joined]
    for proof in shown:
        if isinstance(proof, ProofOfWork):
            own = puzzle_of(at.ledger, at.me, back=at.plan.round - proof.round)
            return forged(at) if own.attempt(proof.nonce) else proof
    return forged(at)


@cache
def _saved_up(first: Puzzle) -> ProofOfWork:
    return solution(first)


def saved_up(at: Aim) -> ProofOfWork:
    """Return a proof that was found for the first plan, and is shown for as long as the run lasts."""
    return _saved_up(puzzle_of(at.ledger, at.me, back=len(at.ledger.digests)))


# --- deeds -----------------------------------------------------------------------------------------------------------


def false_request(name: PeerId, sign: Callable[[bytes], str], ledger: Ledger, chance: Random) -> JoinRequest:
    """Return a join request with a nonce that nobody has checked yet and that is no proof."""
    ticket = false_proof(puzzle_of(ledger, name), chance)
    return strangers.join_request(name, sign, ledger.plans[-1], beat=1, ticket=ticket)


@dataclass(slots=True)
class FalseProofs:
    """A deed against all peers at once: join requests whose proofs have to be checked, and are false."""

    per_wake: int = PROOFS_PER_BEAT
    """New false proofs per wake."""
    beats: int = 1
    """Heartbeats to each peer."""
    num_made: int = 0
    _stock: deque[JoinRequest] = field(default_factory=lambda: deque(maxlen=STOCK))

    def __call__(self, at: Aim) -> Sequence[object]:
        if not at.plan.price or at.plan.is_last:
            return ()
        for _ in range(self.per_wake):
            self._stock.append(false_request(at.me, partial(at.port.sign, at.me), at.ledger, at.port.random))
            self.num_made += 1
        for victim in at.port.victims():
            for _ in range(self.beats):
                joins = at.port.random.sample(list(self._stock), min(PROOFS_PER_BEAT, len(self._stock)))
                at.port.send(at.me, victim, strangers.beat(at, joins=tuple(joins)))
        return ()


def passing_on_false_proofs(chance: Random) -> Outgoing:
    """Return a strategy: the member's heartbeats hold new false proofs of a stranger, different for each peer, for as long as
    the flood lasts."""

    def sends(machine: Machine, _peer: PeerId, message: object) -> Sent:
        is_over = machine.around.queue.now > FLOOD_SECONDS
        if not isinstance(message, Heartbeat) or machine.process is None or is_over:
            return at_once(message)
        ledger = machine.process.agreement.ledger
        joins = tuple(false_request(GHOST, partial(sign, GHOST), ledger, chance) for _ in range(PROOFS_PER_BEAT))
        return at_once(replace(message, joins=joins))

    return sends


def by_all_names(deed: Deed) -> Deed:
    """Return a deed that each identity does to the same peer, at once."""

    def acts(at: Aim) -> Sequence[object]:
        for name in at.port.names:
            for message in deed(replace(at, me=name)):
                at.port.send(name, at.victim, message)
        return ()

    return acts


# --- the fight -------------------------------------------------------------------------------------------------------


class Checking(GossipAgreement):
    """The agreement of a machine that remembers the proofs that it checked itself, although the simulator has all machines in
    one process."""

    def __init__(self, me: PeerId, **arguments: object) -> None:
        super().__init__(me, **arguments)  # type: ignore[arg-type]
        self.checked: OrderedDict[tuple[Puzzle, int], bool] = OrderedDict()

    def receive(self, sender: PeerId, message: object, now: float) -> list[Effects]:
        proof_of_work._checked = self.checked
        return super().receive(sender, message, now)

    def submit(self, report: Report, now: float) -> list[Effects]:
        proof_of_work._checked = self.checked
        return super().submit(report, now)

    def tick(self, now: float) -> list[Effects]:
        proof_of_work._checked = self.checked
        return super().tick(now)


@contextmanager
def quick_attempts() -> Iterator[None]:
    kept = proof_of_work.MEMORY_COST, proof_of_work.BLOCK_SIZE, proof_of_work._checked
    proof_of_work.MEMORY_COST, proof_of_work.BLOCK_SIZE = QUICK
    _saved_up.cache_clear()
    try:
        yield
    finally:
        proof_of_work.MEMORY_COST, proof_of_work.BLOCK_SIZE, proof_of_work._checked = kept
        _saved_up.cache_clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """A fight in which the honest newcomer came, too."""

    result: Result
    attempts: Mapping[PeerId, int]
    """For each honest founder, the number of other peers' proofs that it checked."""

    @property
    def plans_to_a_seat(self) -> int | None:
        """The number of plans from the newcomer's arrival to the first with a seat for it."""
        arena = self.result.arena
        rounds = [round for round in sorted(arena.entries) if min(arena.decided[round]) >= NEWCOMER_AT]
        waits = (n for n, round in enumerate(rounds, 1) if NEWCOMER in roster_of(arena.entries[round].plan))
        return next(waits, None)

    def keeps_the_newcomer_out(self, most_plans: int = SEAT_PLANS) -> str:
        """Return the problem where the newcomer waits for longer than this; by default longer than the simulator allows without
        any attack."""
        waited = self.plans_to_a_seat
        if waited is None:
            return "a newcomer that paid got no seat"
        return f"a newcomer that paid waited for {waited} plans" if waited > most_plans else ""


def paid(seed: int, setting: Setting, attackers: Strangers, liars: Mapping[int, Liar] = MappingProxyType({})) -> Paid:
    made: list[Checking] = []

    def checking(me: PeerId, **arguments: object) -> GossipAgreement:
        made.append(Checking(me, **arguments))
        return made[-1]

    def prepare(arena: Arena) -> None:
        arena._around.make_agreement = checking
        arena.queue.at(NEWCOMER_AT, arena._join)

    with quick_attempts():
        result = fight(seed, setting, liars=liars, adversary=attackers, prepare=prepare)
    honest = [name_of(number) for number in range(setting.peers) if number not in liars]
    return Paid(result=result, attempts={one.me: len(one.checked) for one in made if one.me in honest})


def seats_of_strangers(seated: Collection[PeerId]) -> str:
    return f"seats of strangers: {', '.join(sorted(peer.rstrip('-') for peer in seated))}" if seated else ""


# --- rows ------------------------------------------------------------------------------------------------------------


def flooded(*, by_member: bool) -> Play:
    """Check that the proofs that strangers and a member can make a peer check are bounded, and that the newcomer gets its
    seat."""
    least = 0.8 * (STRANGER_CHECKS + STRANGER_CHECKS_PER_SECOND * FLOOD_SECONDS)
    most = STRANGER_CHECKS + STRANGER_CHECKS_PER_SECOND * FLOOD_SECONDS + 2 * FLOODED.rounds
    """The bound, with the newcomer's proofs, and one false proof of a member for each plan."""

    def play(seed: int) -> Outcome:
        flood = FalseProofs(beats=8)
        attackers = Strangers(deeds=(flood,), names=stranger_names(1), until=FLOOD_SECONDS)
        liars = {LIAR: Liar(sends=passing_on_false_proofs(Random(seed)))} if by_member else {}
        fought = paid(seed, FLOODED, attackers, liars)
        spent = fought.attempts.values()
        return judged(
            fought.result,
            seats_of_strangers(let_in(fought.result)),
            fought.keeps_the_newcomer_out(),
            f"a peer checked {max(spent)} proofs, {most:.0f} are allowed" if max(spent) > most else "",
            f"no flood: a peer checked {min(spent)} proofs only" if min(spent) < least else "",
            sent=f"{flood.num_made} false proofs of strangers, a peer checked {max(spent)} at most,"
            f" the newcomer waited for {fought.plans_to_a_seat} plans",
        )

    return play


LIES = (none_at_all, forged, foreign, of_another_run, of_an_old_plan, of_a_round_to_come, borrowed)


def replayed(seed: int) -> Outcome:
    """Show proofs for other names, runs and plans, also the one by which the newcomer got its seat."""
    attackers = Strangers(deeds=[knocking(lie) for lie in LIES], names=stranger_names(3))
    fought = paid(seed, replace(PAID, rounds=16), attackers)
    return judged(
        fought.result,
        seats_of_strangers(let_in(fought.result)),
        fought.keeps_the_newcomer_out(),
        sent=f"{attackers.num_sent} messages of strangers",
    )


def saved_up_for_the_start(seed: int) -> Outcome:
    """More names than there are first seats have computed before the run began, and ask all the time."""
    names = stranger_names(FIRST_SEATS + 4)
    fought = paid(seed, LONG, Strangers(deeds=(by_all_names(knocking(saved_up)),), names=names))
    joined = rounds_where(fought.result, lambda entry: any(join.peer in names for join in entry.value.joined))
    crowded = rounds_where(fought.result, lambda entry: sum(peer in names for peer in roster_of(entry.plan)) > FIRST_SEATS)
    late = [round for round in joined if round > PROOF_ROUNDS]
    return judged(
        fought.result,
        "" if joined else "none of them was let in",
        f"let in by an old proof in rounds {late}" if late else "",
        f"more seats than there are first seats in rounds {crowded}" if crowded else "",
        fought.keeps_the_newcomer_out(PROOF_ROUNDS + SEAT_PLANS),
        sent=f"{len(names)} proofs for the first plan, seats by them until round {max(joined, default=0)},"
        f" the newcomer waited for {fought.plans_to_a_seat} plans",
    )


def one_proof_in_many_places(seed: int) -> Outcome:
    """Six names show what one of them has paid, to all peers at once, also to both sides of a partition."""
    names = stranger_names(6)
    kept: list[ProofOfWork] = []

    def shows(at: Aim) -> ProofOfWork:
        if not kept:
            own, *others = (puzzle_of(at.ledger, name) for name in names)
            kept.append(solution(own, others=others))
        return kept[0]

    attackers = Strangers(deeds=(by_all_names(knocking(shows)),), names=names)
    fought = paid(seed, replace(PARTED, admission="work", rounds=LONG.rounds), attackers)
    seated = let_in(fought.result)
    return judged(
        fought.result,
        seats_of_strangers(seated - {names[0]}),
        "" if names[0] in seated else "the name that paid got no seat",
        fought.keeps_the_newcomer_out(),
        sent=f"one proof by {len(names)} names at all peers, {len(seated)} let in",
    )


def proofs_of_a_banned_name(seed: int) -> Outcome:
    """A banned name that paid shows a new proof for each plan; once the ban is lifted, it shows the last earlier one."""
    (banned,) = stranger_names(1)
    kept: list[ProofOfWork] = []

    def shows(at: Aim) -> ProofOfWork:
        if banned not in at.ledger.admissions.lifted() or not kept:
            kept[:] = [solution(puzzle_of(at.ledger, banned))]
        return kept[0]

    def orders(machine: Machine, _peer: PeerId, message: object) -> Sent:
        if not isinstance(message, Heartbeat) or machine.process is None:
            return at_once(message)
        ledger = machine.process.agreement.ledger
        ban = ledger.admissions.bans().get(banned)
        if banned in roster_of(ledger.plans[-1]):
            message = replace(message, statements=(statement("ban", banned, 1),))
        elif ban is not None and ledger.plans[-1].round >= ban.position + 4:
            message = replace(message, statements=(statement("unban", banned, 2),))
        return at_once(message)

    attackers = Strangers(deeds=(by_all_names(knocking(shows)),), names=(banned,))
    fought = paid(seed, LONG, attackers, {0: Liar(sends=orders)})
    seated = rounds_where(fought.result, lambda entry: banned in roster_of(entry.plan))
    ordered = rounds_where(fought.result, lambda entry: entry.value.statements)
    back = [round for round in seated if ordered and round > ordered[0]]
    return judged(
        fought.result,
        f"it had a seat again in rounds {back}" if back else "",
        "" if len(ordered) == 2 else f"of a ban and its end the ledger has {len(ordered)}",
        fought.keeps_the_newcomer_out(),
        sent=f"seated in rounds {seated}, banned and let in again in rounds {ordered}",
    )


PAID_SEATS: tuple[Scenario, ...] = (
    Scenario("false proofs of strangers", flooded(by_member=False)),
    Scenario("false proofs of strangers and of a member", flooded(by_member=True)),
    Scenario("proofs of others, old and foreign ones", replayed),
    Scenario("proofs saved up for the first plan", saved_up_for_the_start),
    Scenario("one proof in many places", one_proof_in_many_places),
    Scenario("proofs of a banned name", proofs_of_a_banned_name),
)
