"""What members invent about histories, averages, hosts and invitations, by rules that came after the review: scenarios of the
simulated world."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from adloco_p2p.core.model.branches import FIRST_BRANCH_ID, BranchState
from adloco_p2p.core.model.certificate import BranchProof, Certificate
from adloco_p2p.core.model.complaints import Complaint
from adloco_p2p.core.model.messages import AverageDigest, Heartbeat
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.report import Report, StepLosses
from adloco_p2p.core.model.roster_entry import FULL_STANDING
from adloco_p2p.core.model.rules import GuardRules
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.sim.adversary import stranger_names
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.synthetic_reports import lone_proof
from adloco_p2p.sim.world import Parts
from benchmarks.adversary import members
from benchmarks.adversary.arena import LOSS, Arena, Result, Setting, fight
from benchmarks.adversary.invitations import invitation, knocking, statement
from benchmarks.adversary.review import LIAR, applies_nothing_wrong
from benchmarks.adversary.scenario import Outcome, Scenario, judged
from benchmarks.adversary.silence import SEVEN, suspensions_of_the_honest
from benchmarks.adversary.strangers import Strangers

TWO_OF_SEVEN = (2, 5)
CRASHES = Faults(loss=LOSS, crashes=4, faults_end_at=60.0)
CUT = Faults(loss=LOSS, partition_at=25.0, partition_seconds=30.0, faults_end_at=70.0)


def by_reports_of(
    setting: Setting,
    alterations: Mapping[int, Callable[[Report], Report]],
    *checks: Callable[[Result], str],
) -> Callable[[int], Outcome]:
    """These founders run the product and alter their reports."""

    def play(seed: int) -> Outcome:
        parts = Parts(alterations=alterations, strategies={number: members.together() for number in alterations})
        result = fight(seed, setting, parts=parts)
        return judged(result, *(check(result) for check in checks), sent=f"reports of {len(alterations)} founders")

    return play


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
    """In every report another lost history, with a certificate as a peer that was cut off alone has it."""

    def altered(report: Report) -> Report:
        branch = _branch(report)
        proof = lone_proof(report.peer, [name_of(number) for number in range(num_founders)], branch)
        return replace(report, branches=(branch,), proof=proof)

    return altered


def with_votes_of_others(num_founders: int) -> Callable[[Report], Report]:
    """In every report a lost history whose certificate has votes of all, none of them signed by its voter."""

    def altered(report: Report) -> Report:
        branch = _branch(report)
        names = [name_of(number) for number in range(num_founders)]
        (own,) = lone_proof(report.peer, names, branch).certificate.votes
        certificate = Certificate(
            ballot=lone_proof(report.peer, names, branch).certificate.ballot,
            absent=(),
            votes=tuple(replace(own, peer=name) for name in names),
        )
        return replace(report, branches=(branch,), proof=BranchProof(branch=branch.branch, certificate=certificate))

    return altered


def gives_up_its_seat(seed: int) -> Outcome:
    """A member is silent as one that was cut off is, until the others take it off the roster, and then claims that it trained
    apart, with a certificate of its own vote."""
    setting = Setting(rounds=24)
    names = [name_of(number) for number in range(setting.peers)]
    begins, ends = 25.0, 55.0
    before: list[Report] = []
    is_silent = [False]

    def sends(machine: Machine, peer: PeerId, message: object) -> members.Sent:
        del peer
        is_silent[0] = begins <= machine.around.queue.now < ends
        return () if is_silent[0] else members.at_once(message)

    def alters(report: Report) -> Report:
        if not before or (report.round == before[-1].round + 1 and not is_silent[0] and len(before) < 3):
            before.append(report)
        if is_silent[0] or report is before[-1]:
            return report
        branch = replace(_branch(before[-1]), samples=10**12)
        return replace(report, branches=(branch,), proof=lone_proof(report.peer, names, branch))

    result = fight(seed, setting, parts=Parts(alterations={LIAR: alters}, strategies={LIAR: sends}))
    entries = result.arena.entries.values()
    away = sum(name_of(LIAR) not in roster_of(entry.plan) for entry in entries)
    named = {item.branch_state.key for entry in entries for item in entry.plan.branches}
    sent = f"one claim for {away} rounds without a seat, named: {len(named)}"
    too_many = f"{len(named)} claims were named" if len(named) > 1 else ""
    return judged(result, weighs_no_more_than_its_votes(result), too_many, sent=sent)


def under_a_true_certificate(report: Report) -> Report:
    """A member of the side that lost names a state that nobody has for what it trained apart."""
    dead = tuple(replace(claim, round=claim.round + 1, state=members.DEAD_STATE) for claim in report.branches)
    return replace(report, branches=dead)


def weighs_no_more_than_its_votes(result: Result) -> str:
    """The claim of one elector alone weighs at most its part of the electors."""
    part = 1.0 / len(result.arena.genesis.roster)
    heavy = [
        entry.plan.round
        for entry in result.arena.entries.values()
        for merge in entry.plan.merges
        for source, weight in zip(merge.sources, merge.weights, strict=True)
        if source >= FIRST_BRANCH_ID and weight > part + 1e-9
    ]
    return f"plans of rounds {heavy} give a lone history more than {part:.0%}" if heavy else ""


def names_no_branch(result: Result) -> str:
    rounds = [entry.plan.round for entry in result.arena.entries.values() if entry.plan.branches]
    return f"plans of rounds {rounds} name histories that never were" if rounds else ""


# --- votes on averages -----------------------------------------------------------------------------------------------


def votes_of_another_attempt(seed: int) -> Outcome:
    """A host shows the votes that others signed in earlier attempts, rounds and instances as votes for an average of its own
    making: as the same attempt, as a later one, and as an answer to any question."""
    heard: dict[PeerId, AverageDigest] = {}
    sent = [0]

    def listen(arena: Arena) -> None:
        liar = arena.machines[name_of(LIAR)]
        deliver = liar.deliver

        def heard_by(sender: PeerId, message: object) -> None:
            if isinstance(message, AverageDigest) and message.signature and not message.is_void:
                heard[sender] = message
            deliver(sender, message)

        liar.deliver = heard_by  # type: ignore[method-assign]

    def relabels(machine: Machine, peer: PeerId, message: object) -> members.Sent:
        if not isinstance(message, AverageDigest) or message.is_void or not heard:
            return members.at_once(message)
        backers = tuple((voter, vote.signature) for voter, vote in sorted(heard.items()) if voter != machine.peer)
        forged = replace(message, digest=hashed("of its own making", message.round), backers=backers)
        older = [replace(vote, round=message.round, instance=message.instance, backers=backers) for vote in heard.values()]
        later = replace(forged, attempt=message.attempt + 1, is_answer=True)
        sent[0] += 2 + len(older)
        del peer
        return members.at_once(forged, later, *older, message)

    result = fight(seed, SEVEN, strategies={LIAR: relabels}, prepare=listen)
    problem = "" if sent[0] else "nothing was sent"
    return judged(result, applies_nothing_wrong(result), problem, sent=f"{sent[0]} relabelled votes")


# --- hosts -----------------------------------------------------------------------------------------------------------


def leaves_out_all(report: Report) -> Report:
    """Every host but the first three was left out by the stricter rule, and every step raised the loss."""
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
    """No honest founder owes a report of a probation, or weighs less than in full."""
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
    """The author makes a member a signer and takes it back; that member's link of 50 seats is used all the time."""
    signer = name_of(LIAR)

    def orders(machine: Machine, peer: PeerId, message: object) -> members.Sent:
        del peer
        head = machine.process.agreement.ledger.head if machine.process is not None else None
        if isinstance(message, Heartbeat) and head is not None and head.round >= 4:
            added = (statement("add_signer", signer, 1),)
            message = replace(message, statements=added if head.round < 8 else (*added, statement("remove_signer", signer, 2)))
        return members.at_once(message)

    attackers = Strangers(deeds=(knocking(invitation(50, signer=signer)),), names=stranger_names(12))
    result = fight(seed, Setting(rounds=16), adversary=attackers, strategies={0: orders})
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
ALL_LEFT_OUT = dict.fromkeys(TWO_OF_SEVEN, leaves_out_all)
COMPLAINTS = dict.fromkeys(TWO_OF_SEVEN, complains_in_turn(range(7)))

CLAIMS: tuple[Scenario, ...] = tuple(
    Scenario(name=name, finding="", play=play)
    for name, play in (
        (
            "a lost history by its own vote",
            by_reports_of(Setting(rounds=16), {LIAR: with_its_own_vote(5)}, names_no_branch),
        ),
        ("a lost history for a seat given up", gives_up_its_seat),
        (
            "two lost histories a round, with crashes",
            by_reports_of(
                replace(SEVEN, faults=CRASHES), dict.fromkeys(TWO_OF_SEVEN, with_its_own_vote(7)), weighs_no_more_than_its_votes
            ),
        ),
        (
            "a lost history by unsigned votes of all",
            by_reports_of(Setting(rounds=16), {LIAR: with_votes_of_others(5)}, names_no_branch),
        ),
        (
            "a dead state under a true certificate",
            by_reports_of(Setting(rounds=24, faults=CUT), {LIAR: under_a_true_certificate}),
        ),
        ("votes of former attempts and rounds", votes_of_another_attempt),
        ("all were left out and every step was bad", by_reports_of(GUARDED, ALL_LEFT_OUT, keeps_full_standing)),
        (
            "complaints about one after another, with crashes",
            by_reports_of(replace(SEVEN, faults=CRASHES), COMPLAINTS, suspensions_of_the_honest),
        ),
        ("an invitation of a former signer", invitation_of_a_former_signer),
    )
)
