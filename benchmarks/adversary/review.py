"""The findings of the review of trust that concern the agreement and the averages, as scenarios of the simulated world."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from statistics import fmean

from adloco_p2p.core.agreement.ledger_sync import STRANGERS_PER_PERIOD
from adloco_p2p.core.model.ledger_entry import WrongSum
from adloco_p2p.core.model.messages import Entries
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.adversary import Liar, Outgoing, stranger_names
from adloco_p2p.sim.cached_rule import CachedRule, production_rule
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of, sign
from adloco_p2p.sim.world import Parts, small_rules
from benchmarks.adversary import members, strangers
from benchmarks.adversary.arena import LOSS, Arena, Result, Setting, fight
from benchmarks.adversary.scenario import (
    LIAR,
    Check,
    Outcome,
    Play,
    Scenario,
    by_member,
    by_reports,
    judged,
    played,
    rounds_where,
)
from benchmarks.adversary.silence import one_wrong_average
from benchmarks.adversary.strangers import Aim, Deed, Strangers

ROUNDS_TO_A_BAN = 8
"""A lie about every average is checked with a probability of about one half a round, and evidence takes a round to a plan."""
OPEN = Setting(admission="open")
OPEN_LONG = replace(OPEN, rounds=24)
LONG_ROUNDS = Setting(
    round_seconds=80.0,
    faults=Faults(loss=LOSS, faults_end_at=400.0),
    rules=replace(small_rules(5, 4), work=WorkRules(rounds=4, inner_steps=400)),
)
"""Longer than a proposer waits for stragglers, and as long as the plans expect by the speeds that machines claim."""
MOST_VOID = 0.2
"""The part of the rounds of punctual honest hosts that a liar may cost, ..."""
WORLDS = 5
"""... in the mean over so many worlds: each has few rounds, so that one void round is a sixth of them."""


def by_strangers(deed: Deed) -> Play:
    setting = Setting()
    decide = CachedRule(production_rule(setting.made_rules()))
    return played(setting, {}, strangers=lambda: Strangers(deeds=(deed,), decide=decide), is_idle_wrong=True)


def by_reducer(hands_out: Callable[[PeerId, object], object], *checks: Check, sends: Outgoing | None = None) -> Play:
    liar = Liar(hands_out=hands_out)
    return played(Setting(), {LIAR: liar if sends is None else replace(liar, sends=sends)}, *checks)


# --- what else must not happen ---------------------------------------------------------------------------------------


def names_no_dead_state(result: Result) -> str:
    """Check that no plan makes others fetch the liar's state."""
    rounds = rounds_where(result, lambda entry: members.DEAD_STATE in {item.state_digest for item in entry.plan.instances})
    return f"plans of rounds {rounds} name the state of the liar" if rounds else ""


def names_no_branch(result: Result) -> str:
    rounds = rounds_where(result, lambda entry: entry.plan.branches)
    return f"plans of rounds {rounds} name histories that never were" if rounds else ""


def holds_most_reports(result: Result) -> str:
    """Check that every plan has reports of most of the roster, from the first round that can be reported on."""
    thin = rounds_where(result, lambda made: made.plan.round >= 2 and 2 * len(made.reports) <= len(made.plan.roster))
    return f"plans of rounds {thin} hold reports of no majority" if thin else ""


def applies_nothing_wrong(result: Result) -> str:
    wrong = result.arena.num_wrong_steps
    return f"honest hosts applied {wrong} averages that no honest host computed" if wrong else ""


def ends_soon(result: Result) -> str:
    """Check that evidence bans the liar soon, so that it spoils the averages of few rounds."""
    liar = name_of(LIAR)
    banned = rounds_where(
        result, lambda entry: any(isinstance(made, WrongSum) and made.subject == liar for made in entry.value.statements)
    )
    if not banned:
        return "the liar was not banned"
    return f"the liar was banned in round {min(banned)} only" if min(banned) > ROUNDS_TO_A_BAN else ""


def seats_no_ghost(result: Result) -> str:
    longest = max((len(entry.plan.roster) for entry in result.arena.entries.values()), default=0)
    return "" if longest <= len(result.arena.genesis.roster) else f"a roster has {longest} seats"


# --- scenarios with a shape of their own -----------------------------------------------------------------------------


def asks_for_ghosts(at: Aim) -> tuple[object, ...]:
    """A5: names ask for seats, are said to live, and never report."""
    beat = strangers.beat(at).beat
    joins = tuple(strangers.join_request(name, partial(at.port.sign, name), at.plan, beat=beat) for name in at.port.names)
    return (strangers.beat(at, joins=joins),)


def locked_door(seed: int) -> Outcome:
    """A6: more newcomers ask than a peer remembers; then an honest one comes."""
    flood = strangers.Flood(beats=16)
    # Ghosts are not let in, because the author's run is ticketed; the honest newcomer is a founder whose disk is new.
    attackers = Strangers(deeds=(flood,), until=40.0)
    faults = Faults(loss=LOSS, faults_end_at=60.0, crashes=2)
    result = fight(seed, Setting(faults=faults), adversary=attackers)
    return judged(result, seats_no_ghost(result), sent=f"requests of {flood.num_names} names")


def pulls(seed: int) -> Outcome:
    """A8: small questions have large answers."""
    attackers = Strangers(deeds=(strangers.pulls_and_pings,))
    result = fight(seed, Setting(), adversary=attackers)
    answered = sum(isinstance(answer, Entries) for answer in attackers.answers)
    seconds = result.arena.time
    most = STRANGERS_PER_PERIOD * len(result.arena.machines) * seconds
    problem = "" if answered <= most else f"{answered} answers with ledger entries in {seconds:.0f} s"
    return judged(result, problem, sent=f"{attackers.num_sent} questions, {answered} answers with entries")


def completes_what_was_never_decided(seed: int) -> Outcome:
    """B8: attempts end because the liar names a decision that was never made; played in several worlds."""
    voids: list[float] = []

    def note_void(result: Result) -> str:
        voids.append(result.void)
        return ""

    play = by_member(members.invents_completions, note_void, setting=replace(LONG_ROUNDS, rounds=6))
    outcomes = [play(seed + number) for number in range(WORLDS)]
    failed = next((outcome for outcome in outcomes if not outcome.has_passed), None)
    if failed is not None:
        return failed
    void = fmean(voids)
    happened = f"{void:.0%} of the rounds of punctual hosts were void in {WORLDS} worlds, {MOST_VOID:.0%} may be"
    return Outcome(sent=outcomes[0].sent, happened=happened, has_passed=void <= MOST_VOID)


def is_slow(arena: Arena) -> None:
    arena.machines[name_of(LIAR)].round_seconds *= 2.0


def seats_old_requests(seed: int) -> Mapping[int, Liar]:
    """B11: a proposer seats names that asked once, were let in, and are gone."""
    del seed
    plan = Arena(0, OPEN, Parts()).genesis
    requests = (strangers.join_request(name, partial(sign, name), plan, beat=10**7) for name in stranger_names(2))
    return {LIAR: Liar(sends=members.seats(*requests))}


REVIEW: tuple[Scenario, ...] = (
    Scenario("one-vote entry of a stranger", by_strangers(strangers.takes_over), "A1"),
    Scenario("one-vote entry of a member", by_member(members.takes_over_alone), "A1"),
    Scenario("forged history of a stranger", by_strangers(strangers.forges_a_history), "A2"),
    Scenario("forged history of a member", by_member(members.forges_history), "A2"),
    Scenario("unasked values of a stranger", by_strangers(strangers.supplies_unasked_values), "A3"),
    Scenario("unasked values of a member", by_member(members.supplies_unasked_values), "A3"),
    Scenario("leaping beats of a stranger", by_strangers(strangers.invents_beats), "A4"),
    Scenario("leaping beats of a member", by_member(members.invents_beats), "A4"),
    Scenario("ghosts", played(OPEN_LONG, {}, strangers=lambda: Strangers(deeds=(asks_for_ghosts,))), "A5"),
    Scenario("locked door", locked_door, "A6"),
    Scenario("small questions", pulls, "A8"),
    Scenario("first ballot with one report", by_member(members.proposes_alone, names_no_dead_state), "B1"),
    Scenario("reporting alone", by_member(members.proposes_alone, holds_most_reports, setting=LONG_ROUNDS), "B2"),
    Scenario("tie of two hosts", by_reports(members.names_a_small_state, names_no_dead_state, setting=Setting(peers=2)), "B3"),
    Scenario("invented branches", by_reports(members.names_many_branches, names_no_branch), "B4"),
    Scenario(
        "different averages and one word",
        by_reducer(members.hands_out_two_averages, applies_nothing_wrong, sends=members.lies_about_averages),
        "B5",
    ),
    Scenario("one wrong average for all", by_reducer(one_wrong_average, ends_soon), "B6"),
    Scenario("slow drip", played(Setting(), {LIAR: Liar(sends=members.answers_late)}, prepare=is_slow), "B8"),
    Scenario("attempt after attempt", by_member(members.starts_attempts), "B8"),
    Scenario("attempts called for by claims", by_member(members.starts_attempts_after_claims), "B8"),
    Scenario("accusing one after another", by_member(members.accuses_one_after_another), "B8"),
    Scenario("ending every attempt", by_member(members.ends_every_attempt()), "B8"),
    Scenario("ending it for one host", by_member(members.ends_every_attempt_for_one_host), "B8"),
    Scenario("ending it in another's name", by_member(members.ends_every_attempt(is_led=True)), "B8"),
    Scenario("contributing other steps", by_member(members.contributes_other_steps), "B8"),
    Scenario("completing what was never decided", completes_what_was_never_decided, "B8"),
    Scenario("ending it by suspects", by_member(members.ends_every_attempt(suspects=1)), "B8"),
    Scenario("livelock of ballots", by_member(members.overtakes_ballots), "B8"),
    Scenario("evicting the living", by_member(members.evicts_the_living), "B9"),
    Scenario("largest reports", by_reports(members.is_as_large_as_it_can_be), "B10"),
    Scenario("old join requests", played(OPEN_LONG, seats_old_requests), "B11"),
    Scenario(
        "extreme statistics",
        played(Setting(), lambda seed: {LIAR: Liar(alters=members.ReportsExtremes(Random(seed)))}, is_idle_wrong=True),
        "B11",
    ),
)
