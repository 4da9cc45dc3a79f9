"""The findings of the review of trust that concern the agreement and the averages, as scenarios of the simulated world."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random

from adloco_p2p.core.agreement.ledger_sync import STRANGERS_PER_PERIOD
from adloco_p2p.core.model.ledger_entry import WrongSum
from adloco_p2p.core.model.messages import Entries
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.adversary import stranger_names
from adloco_p2p.sim.cached_rule import CachedRule, production_rule
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of, sign
from adloco_p2p.sim.machine import Outgoing
from adloco_p2p.sim.world import Parts, small_rules
from benchmarks.adversary import members, strangers
from benchmarks.adversary.arena import LOSS, Arena, Result, Setting, fight
from benchmarks.adversary.scenario import Outcome, Scenario, judged
from benchmarks.adversary.silence import one_wrong_average
from benchmarks.adversary.strangers import Aim, Deed, Strangers

LIAR = 1
"""Number of the founder that lies, where one does. It votes, proposes and reduces in full."""
ROUNDS_TO_A_BAN = 8
"""A lie about every average is drawn with a probability of about one half a round, and evidence takes a round to a plan."""
OPEN = Setting(admission="open")
LONG_ROUNDS = Setting(
    round_seconds=80.0,
    faults=Faults(loss=LOSS, faults_end_at=400.0),
    rules=replace(small_rules(5, 4), work=WorkRules(rounds=4, inner_steps=400)),
)
"""Longer than a proposer waits for stragglers, and as long as the plans expect by the speeds that machines claim."""
MOST_VOID = 0.2
"""Of the rounds that a liar may cost the honest hosts that are all punctual."""


def by_strangers(deed: Deed, *, setting: Setting | None = None) -> Callable[[int], Outcome]:
    def play(seed: int) -> Outcome:
        chosen = setting or Setting()
        attackers = Strangers(deeds=(deed,), decide=CachedRule(production_rule(chosen.made_rules())))
        result = fight(seed, chosen, adversary=attackers)
        return judged(result, "" if attackers.num_sent else "nothing was sent", sent=f"{attackers.num_sent} messages")

    return play


def by_member(
    strategy: Outgoing | Callable[[], Outgoing],
    *,
    is_made: bool = False,
    check: Callable[[Result], str] = lambda _: "",
    setting: Setting | None = None,
) -> Callable[[int], Outcome]:
    """`is_made`: `strategy` makes one, anew for every world."""

    def play(seed: int) -> Outcome:
        counted = Counter[str]()
        acts: Outgoing = strategy() if is_made else strategy  # type: ignore[call-arg,assignment]

        def counting(machine: object, peer: PeerId, message: object) -> list[tuple[float, object]]:
            sent = list(acts(machine, peer, message))  # type: ignore[arg-type]
            counted.update(type(other).__name__ for _, other in sent if other is not message)
            counted["held back"] += not any(other is message for _, other in sent)
            return sent

        result = fight(seed, setting or Setting(), strategies={LIAR: counting})
        told = ", ".join(f"{number} {name}" for name, number in counted.most_common(3) if number)
        return judged(result, check(result), "" if told else "nothing was sent", sent=told)

    return play


def by_reports(
    alteration: Callable[[Report], Report], *, check: Callable[[Result], str] = lambda _: "", setting: Setting | None = None
) -> Callable[[int], Outcome]:
    def play(seed: int) -> Outcome:
        counted = Counter[str]()

        def altered(report: Report) -> Report:
            changed = alteration(report)
            counted["altered"] += changed != report
            return changed

        parts = Parts(alterations={LIAR: altered}, strategies={LIAR: members.together()})
        result = fight(seed, setting or Setting(), parts=parts)
        return judged(
            result, check(result), "" if counted["altered"] else "no report was altered", sent=f"{counted['altered']} reports"
        )

    return play


def by_reducer(
    hands_out: Callable[[PeerId, object], object],
    *,
    strategies: Mapping[int, Outgoing] | None = None,
    check: Callable[[Result], str] = lambda _: "",
) -> Callable[[int], Outcome]:
    def play(seed: int) -> Outcome:
        counted = Counter[str]()

        def counting(host: PeerId, average: object) -> object:
            counted["averages"] += 1
            return hands_out(host, average)

        parts = Parts(returned={LIAR: counting}, strategies=strategies or {LIAR: members.together()})
        result = fight(seed, Setting(), parts=parts)
        return judged(result, check(result), sent=f"{counted['averages']} averages")

    return play


# --- what else must not happen ---------------------------------------------------------------------------------------


def names_no_dead_state(result: Result) -> str:
    """No plan makes others fetch the liar's state."""
    rounds = [
        entry.plan.round
        for entry in result.arena.entries.values()
        if any(item.state_digest == members.DEAD_STATE for item in entry.plan.instances)
    ]
    return f"plans of rounds {rounds} name the state of the liar" if rounds else ""


def names_no_branch(result: Result) -> str:
    rounds = [entry.plan.round for entry in result.arena.entries.values() if entry.plan.branches]
    return f"plans of rounds {rounds} name histories that never were" if rounds else ""


def holds_most_reports(result: Result) -> str:
    """Every plan is made of reports of most of the roster, from the first round that can be reported on."""
    thin = [
        entry.plan.round
        for entry in result.arena.entries.values()
        if entry.plan.round >= 2 and 2 * len(entry.reports) <= len(entry.plan.roster)
    ]
    return f"plans of rounds {thin} hold reports of no majority" if thin else ""


def applies_nothing_wrong(result: Result) -> str:
    wrong = result.arena.num_wrong_steps
    return f"honest hosts applied {wrong} averages that no honest host computed" if wrong else ""


def ends_soon(result: Result) -> str:
    """The liar is banned by evidence, and has spoilt averages of a few rounds only."""
    banned = [
        entry.plan.round
        for entry in result.arena.entries.values()
        if any(isinstance(made, WrongSum) and made.subject == name_of(LIAR) for made in entry.value.statements)
    ]
    if not banned:
        return "the liar was not banned"
    return f"the liar was banned in round {min(banned)} only" if min(banned) > ROUNDS_TO_A_BAN else ""


def ends_few_rounds_early(result: Result) -> str:
    return f"{result.void:.0%} of the rounds of punctual hosts were void" if result.void > MOST_VOID else ""


def seats_no_ghost(result: Result) -> str:
    longest = max((len(entry.plan.roster) for entry in result.arena.entries.values()), default=0)
    return "" if longest <= len(result.arena.genesis.roster) else f"a roster has {longest} seats"


# --- scenarios with a shape of their own -----------------------------------------------------------------------------


def ghosts(seed: int) -> Outcome:
    """A5: names that ask for seats, are said to live, and never report."""

    def asks(at: Aim) -> tuple[object, ...]:
        beat = strangers.beat(at).beat
        joins = tuple(strangers.join_request(name, partial(at.port.sign, name), at.plan, beat=beat) for name in at.port.names)
        return (strangers.beat(at, joins=joins),)

    attackers = Strangers(deeds=(asks,), names=stranger_names(3))
    setting = Setting(admission="open", rounds=24)
    result = fight(seed, setting, adversary=attackers)
    most = max((len(entry.plan.roster) for entry in result.arena.entries.values()), default=0)
    return judged(result, sent=f"{attackers.num_sent} messages, rosters of up to {most}")


def locked_door(seed: int) -> Outcome:
    """A6: more newcomers ask than a peer remembers; then an honest one comes."""
    flood = strangers.Flood(beats=16)
    # ghosts are not let in: the author's run is ticketed; the honest newcomer is a founder whose disk is new
    attackers = Strangers(deeds=(flood,), until=40.0)
    faults = Faults(loss=LOSS, faults_end_at=60.0, crashes=2)
    result = fight(seed, Setting(faults=faults), adversary=attackers)
    return judged(result, seats_no_ghost(result), sent=f"requests of {flood.num_names} names")


def pulls(seed: int) -> Outcome:
    """A8: small questions with large answers."""
    attackers = Strangers(deeds=(strangers.pulls_and_pings,))
    result = fight(seed, Setting(), adversary=attackers)
    answered = sum(isinstance(answer, Entries) for answer in attackers.answers)
    seconds = result.arena.time
    most = STRANGERS_PER_PERIOD * len(result.arena.machines) * seconds
    problem = "" if answered <= most else f"{answered} answers with ledger entries in {seconds:.0f} s"
    return judged(result, problem, sent=f"{attackers.num_sent} questions, {answered} answers with entries")


def two_hosts(seed: int) -> Outcome:
    """B3: of two hosts one names a state with a smaller digest."""
    return by_reports(members.names_a_small_state, check=names_no_dead_state, setting=Setting(peers=2))(seed)


def slow_drip(seed: int) -> Outcome:
    """B8: all that one member sends about averages comes late, and its device is four times as slow as it says."""

    def slow(arena: Arena) -> None:
        arena.machines[name_of(LIAR)].round_seconds *= 2.0

    result = fight(seed, Setting(), strategies={LIAR: members.answers_late}, prepare=slow)
    return judged(result, sent="everything late, by a device half as fast as the others")


def old_requests(seed: int) -> Outcome:
    """B11: a proposer seats names that asked once, were let in, and are not there."""
    requests = tuple(
        strangers.join_request(name, partial(sign, name), Arena(0, OPEN, Parts()).genesis, beat=10**7)
        for name in stranger_names(2)
    )
    strategy = members.SeatsGhosts(requests=requests)
    result = fight(seed, Setting(admission="open", rounds=24), strategies={LIAR: strategy})
    most = max((len(roster_of(entry.plan)) for entry in result.arena.entries.values()), default=0)
    return judged(result, sent=f"2 old requests, rosters of up to {most}")


def _alone_with_a_dead_state() -> Outgoing:
    return members.ProposesAlone()


REVIEW: tuple[Scenario, ...] = (
    Scenario(name="one-vote entry of a stranger", finding="A1", play=by_strangers(strangers.takes_over)),
    Scenario(name="one-vote entry of a member", finding="A1", play=by_member(members.takes_over_alone)),
    Scenario(name="forged history of a stranger", finding="A2", play=by_strangers(strangers.forges_a_history)),
    Scenario(name="forged history of a member", finding="A2", play=by_member(members.ForgesHistory, is_made=True)),
    Scenario(name="unasked values of a stranger", finding="A3", play=by_strangers(strangers.supplies_unasked_values)),
    Scenario(name="unasked values of a member", finding="A3", play=by_member(members.supplies_unasked_values)),
    Scenario(name="leaping beats of a stranger", finding="A4", play=by_strangers(strangers.invents_beats)),
    Scenario(name="leaping beats of a member", finding="A4", play=by_member(members.invents_beats)),
    Scenario(name="ghosts", finding="A5", play=ghosts),
    Scenario(name="locked door", finding="A6", play=locked_door),
    Scenario(name="small questions", finding="A8", play=pulls),
    Scenario(
        name="first ballot with one report",
        finding="B1",
        play=by_member(_alone_with_a_dead_state, is_made=True, check=names_no_dead_state),
    ),
    Scenario(
        name="reporting alone",
        finding="B2",
        play=by_member(_alone_with_a_dead_state, is_made=True, check=holds_most_reports, setting=LONG_ROUNDS),
    ),
    Scenario(name="tie of two hosts", finding="B3", play=two_hosts),
    Scenario(name="invented branches", finding="B4", play=by_reports(members.names_many_branches, check=names_no_branch)),
    Scenario(
        name="different averages and one word",
        finding="B5",
        play=by_reducer(
            members.hands_out_two_averages,
            strategies={LIAR: members.lies_about_averages},
            check=applies_nothing_wrong,
        ),
    ),
    Scenario(
        name="one wrong average for all",
        finding="B6",
        play=by_reducer(one_wrong_average, check=ends_soon),
    ),
    Scenario(name="slow drip", finding="B8", play=slow_drip),
    Scenario(name="attempt after attempt", finding="B8", play=by_member(members.starts_attempts)),
    Scenario(name="attempts called for by claims", finding="B8", play=by_member(members.starts_attempts_after_claims)),
    Scenario(name="accusing one after another", finding="B8", play=by_member(members.accuses_one_after_another)),
    Scenario(name="ending every attempt", finding="B8", play=by_member(members.ends_every_attempt)),
    Scenario(name="ending it for one host", finding="B8", play=by_member(members.ends_every_attempt_for_one_host)),
    Scenario(
        name="ending it in another's name",
        finding="B8",
        play=by_member(partial(members.ends_every_attempt, is_led=True)),
    ),
    Scenario(name="contributing other steps", finding="B8", play=by_member(members.contributes_other_steps)),
    Scenario(
        name="completing what was never decided",
        finding="B8",
        play=by_member(members.invents_completions, check=ends_few_rounds_early, setting=replace(LONG_ROUNDS, rounds=6)),
    ),
    Scenario(name="ending it by suspects", finding="B8", play=by_member(partial(members.ends_every_attempt, suspects=1))),
    Scenario(name="livelock of ballots", finding="B8", play=by_member(members.overtakes_ballots)),
    Scenario(name="evicting the living", finding="B9", play=by_member(members.evicts_the_living)),
    Scenario(name="largest reports", finding="B10", play=by_reports(members.is_as_large_as_it_can_be)),
    Scenario(name="old join requests", finding="B11", play=old_requests),
    Scenario(
        name="extreme statistics",
        finding="B11",
        play=lambda seed: by_reports(members.ReportsExtremes(Random(seed)))(seed),
    ),
)
