"""Attacks on rules that came after the review: members invent histories, averages, hosts and invitations. Scenarios of the
simulated world."""

from collections.abc import Callable, Collection
from dataclasses import replace

from adloco_p2p.core.model.branches import FIRST_BRANCH_ID, BranchState
from adloco_p2p.core.model.complaints import Complaint
from adloco_p2p.core.model.messages import AverageDigest, Heartbeat
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.report import Report, StepLosses
from adloco_p2p.core.model.roster_entry import FULL_STANDING
from adloco_p2p.core.model.rules import GuardRules
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.sim.adversary import Liar, Sent, at_once, stranger_names
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.synthetic_reports import lone_proof
from benchmarks.adversary import members
from benchmarks.adversary.arena import LOSS, Arena, Result, Setting, fight
from benchmarks.adversary.invitations import invitation, knocking, statement
from benchmarks.adversary.review import applies_nothing_wrong, names_no_branch
from benchmarks.adversary.scenario import LIAR, Check, Outcome, Play, Scenario, by_reports, judged, played
from benchmarks.adversary.silence import SEVEN, suspensions_of_the_honest
from benchmarks.adversary.strangers import Strangers

TWO_OF_SEVEN = (2, 5)
CRASHES = Faults(loss=LOSS, crashes=4, faults_end_at=60.0)
CUT = Faults(loss=LOSS, partition_at=25.0, partition_seconds=30.0, faults_end_at=70.0)


def by_two(alters: Callable[[Report], Report], check: Check, setting: Setting) -> Play:
    """Return an attack by two founders that run the product and alter their reports."""
    return played(setting, dict.fromkeys(TWO_OF_SEVEN, Liar(alters=alters)), check)


# --- lost histories --------------------------------------------------------------------------------------------------


def _branch(report: Report) -> BranchState:
    return BranchState(
        fork=report.plan,
        fork_round=report.round,
        branch=hashed("branch", report.peer, report.round),
        instance=InstanceId(0),
        round=report.round + 1,
        state=members.DEAD_STATE,
        samples=10**12,
    )


def with_its_own_vote(num_founders: int) -> Callable[[Report], Report]:
    """Put another lost history into every report, with the certificate that a peer has after it was cut off alone."""

    def altered(report: Report) -> Report:
        branch = _branch(report)
        proof = lone_proof(report.peer, [name_of(number) for number in range(num_founders)], branch)
        return replace(report, branches=(branch,), proof=proof)

    return altered


def with_votes_of_others(num_founders: int) -> Callable[[Report], Report]:
    """Put a lost history into every report whose certificate has votes of all peers, none of them signed by its voter."""

    def altered(report: Report) -> Report:
        branch = _branch(report)
        names = [name_of(number) for number in range(num_founders)]
        lone = lone_proof(report.peer, names, branch)
        votes = tuple(replace(lone.certificate.votes[0], peer=name) for name in names)
        proof = replace(lone, certificate=replace(lone.certificate, absent=(), votes=votes))
        return replace(report, branches=(branch,), proof=proof)

    return altered


def gives_up_its_seat(seed: int) -> Outcome:
    """A member falls silent as if it were cut off, until the others take it off the roster. Then it claims that it trained
    apart, with a certificate of its own vote."""
    setting = Setting(rounds=24)
    names = [name_of(number) for number in range(setting.peers)]
    begins, ends = 25.0, 55.0
    before: list[Report] = []
    is_silent = [False]

    def sends(machine: Machine, _peer: PeerId, message: object) -> Sent:
        is_silent[0] = begins <= machine.around.queue.now < ends
        return () if is_silent[0] else at_once(message)

    def alters(report: Report) -> Report:
        if not before or (report.round == before[-1].round + 1 and not is_silent[0] and len(before) < 3):
            before.append(report)
        if is_silent[0] or report is before[-1]:
            return report
        branch = replace(_branch(before[-1]), samples=10**12)
        return replace(report, branches=(branch,), proof=lone_proof(report.peer, names, branch))

    result = fight(seed, setting, liars={LIAR: Liar(sends=sends, alters=alters)})
    entries = result.arena.entries.values()
    away = sum(name_of(LIAR) not in roster_of(entry.plan) for entry in entries)
    named = {item.branch_state.key for entry in entries for item in entry.plan.branches}
    sent = f"one claim for {away} rounds without a seat, named: {len(named)}"
    too_many = f"{len(named)} claims were named" if len(named) > 1 else ""
    return judged(result, weighs_no_more_than_its_votes(result), too_many, sent=sent)


def under_a_true_certificate(report: Report) -> Report:
    """Name a state that nobody has for the training apart, as a member of the side that lost."""
    dead = tuple(replace(claim, round=claim.round + 1, state=members.DEAD_STATE) for claim in report.branches)
    return replace(report, branches=dead)


def weighs_no_more_than_its_votes(result: Result) -> str:
    """Check that the claim of one elector alone weighs at most that elector's part of all."""
    part = 1.0 / len(result.arena.genesis.roster)
    heavy = [
        entry.plan.round
        for entry in result.arena.entries.values()
        for merge in entry.plan.merges
        for source, weight in zip(merge.sources, merge.weights, strict=True)
        if source >= FIRST_BRANCH_ID and weight > part + 1e-9
    ]
    return f"plans of rounds {heavy} give a lone history more than {part:.0%}" if heavy else ""


# --- votes on averages -----------------------------------------------------------------------------------------------


class RelabelsVotes:
    """A member that shows the votes of others, signed in earlier attempts, rounds and instances, as votes for an average of its
    own making: for the same attempt, for a later one, and as an answer to any question."""

    def __init__(self) -> None:
        self.heard: dict[PeerId, AverageDigest] = {}

    def listens(self, arena: Arena) -> None:
        liar = arena.machines[name_of(LIAR)]
        deliver = liar.deliver

        def heard_by(sender: PeerId, message: object) -> None:
            if isinstance(message, AverageDigest) and message.signature and not message.is_void:
                self.heard[sender] = message
            deliver(sender, message)

        liar.deliver = heard_by  # type: ignore[method-assign]

    def __call__(self, machine: Machine, _peer: PeerId, message: object) -> Sent:
        if not isinstance(message, AverageDigest) or message.is_void or not self.heard:
            return at_once(message)
        heard = sorted(self.heard.items())
        backers = tuple((voter, vote.signature) for voter, vote in heard if voter != machine.peer)
        forged = replace(message, digest=hashed("of its own making", message.round), backers=backers)
        older = [replace(v, round=message.round, instance=message.instance, backers=backers) for v in self.heard.values()]
        later = replace(forged, attempt=message.attempt + 1, is_answer=True)
        return at_once(forged, later, *older, message)


def votes_of_another_attempt(seed: int) -> Outcome:
    relabels = RelabelsVotes()
    liars = {LIAR: Liar(sends=relabels)}
    return played(SEVEN, liars, applies_nothing_wrong, prepare=relabels.listens, is_idle_wrong=True)(seed)


# --- hosts -----------------------------------------------------------------------------------------------------------


def leaves_out_all(report: Report) -> Report:
    """Report that the stricter rule left out every host but the first three, and that every step raised the loss."""
    items = tuple(
        replace(item, left_out=item.contributors & ~0b111, step=StepLosses(before=1.0, after=2.0)) for item in report.instances
    )
    return replace(report, instances=items)


def complains_in_turn(victims: Collection[int]) -> Callable[[Report], Report]:
    """About another host in every report, which shows everything."""
    places = tuple(victims)

    def complains(report: Report) -> Report:
        victim = places[report.round % len(places)]
        items = tuple(
            replace(item, complaint=Complaint(round=report.round, contributor=victim, reducer=victim))
            if item.contributors.bit_length() > victim
            else item
            for item in report.instances
        )
        return replace(report, instances=items)

    return complains


def keeps_full_standing(result: Result) -> str:
    """Check that no honest founder is on probation, or has less than its full weight."""
    honest = {machine.peer for machine in result.arena.honest()}
    hit = {
        seat.peer
        for entry in result.arena.entries.values()
        for seat in entry.plan.roster
        if seat.peer in honest and seat.joined_round == 0 and (seat.probation or seat.standing < FULL_STANDING)
    }
    return f"honest founders are on probation: {', '.join(sorted(hit))}" if hit else ""


# --- invitations -----------------------------------------------------------------------------------------------------


def invitation_of_a_former_signer(seed: int) -> Outcome:
    """The author makes a member a signer and takes it back, while that member's link of 50 seats is in use all the time."""
    signer = name_of(LIAR)

    def orders(machine: Machine, _peer: PeerId, message: object) -> Sent:
        head = machine.process.agreement.ledger.head if machine.process is not None else None
        if isinstance(message, Heartbeat) and head is not None and head.round >= 4:
            added = (statement("add_signer", signer, 1),)
            message = replace(message, statements=added if head.round < 8 else (*added, statement("remove_signer", signer, 2)))
        return at_once(message)

    attackers = Strangers(deeds=(knocking(invitation(50, signer=signer)),), names=stranger_names(12))
    result = fight(seed, Setting(rounds=16), adversary=attackers, liars={0: Liar(sends=orders)})
    entries = [result.arena.entries[round] for round in sorted(result.arena.entries)]
    known: set[PeerId] = set()
    wrong, num_rounds = [], 0
    for entry in entries:
        is_signer, new = signer in entry.plan.signers, {join.peer for join in entry.value.joined} - known
        num_rounds += is_signer
        wrong += [entry.plan.round] if new and not is_signer else []
        known |= set(roster_of(entry.plan))
    problem = f"rounds {wrong} let in by the link of a peer that is no signer" if wrong else ""
    return judged(
        result,
        problem,
        "" if num_rounds else "it never was a signer",
        sent=f"a signer for {num_rounds} rounds, {len(known)} seats",
    )


GUARDED = replace(SEVEN, rules=replace(SEVEN.made_rules(), guard=GuardRules(enabled=True)))

CLAIMS: tuple[Scenario, ...] = (
    Scenario("a lost history by its own vote", by_reports(with_its_own_vote(5), names_no_branch, setting=Setting(rounds=16))),
    Scenario("a lost history for a seat given up", gives_up_its_seat),
    Scenario(
        "two lost histories a round, with crashes",
        by_two(with_its_own_vote(7), weighs_no_more_than_its_votes, replace(SEVEN, faults=CRASHES)),
    ),
    Scenario(
        "a lost history by unsigned votes of all",
        by_reports(with_votes_of_others(5), names_no_branch, setting=Setting(rounds=16)),
    ),
    Scenario(
        "a dead state under a true certificate",
        played(Setting(rounds=24, faults=CUT), {LIAR: Liar(alters=under_a_true_certificate)}),
    ),
    Scenario("votes of former attempts and rounds", votes_of_another_attempt),
    Scenario("all were left out and every step was bad", by_two(leaves_out_all, keeps_full_standing, GUARDED)),
    Scenario(
        "complaints about one after another, with crashes",
        by_two(complains_in_turn(range(7)), suspensions_of_the_honest, replace(SEVEN, faults=CRASHES)),
    ),
    Scenario("an invitation of a former signer", invitation_of_a_former_signer),
)
