"""Attacks that are not in the review: mixtures, timing, many identities, restarts in the middle, and legal extremes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from adloco_p2p.core.model.messages import MAX_HEARD, Entries, Heartbeat, Leave
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.rules import InstanceRules, MergeRules
from adloco_p2p.core.model.scalars import MAX_PEER_ID_CHARS, PeerId
from adloco_p2p.sim.adversary import Liar, Outgoing, Sent, at_once, stranger_names
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import RUN, name_of, signed_by
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.world import small_rules
from benchmarks.adversary import members, strangers
from benchmarks.adversary.arena import LOSS, Setting, fight
from benchmarks.adversary.invitations import KEY, invitation, knocking, statement
from benchmarks.adversary.review import applies_nothing_wrong, by_reducer, names_no_dead_state
from benchmarks.adversary.scenario import (
    LIAR,
    Outcome,
    Play,
    Scenario,
    by_member,
    by_reports,
    judged,
    let_in,
    played,
    rounds_where,
)
from benchmarks.adversary.strangers import Aim, Deed, Strangers

SEVEN = Setting(peers=7, rules=replace(small_rules(7, 10), instances=InstanceRules(count=1, start="same")))
"""A setting with one instance, so that the honest hosts are a majority of its hosts."""
CRASHES = Setting(faults=Faults(loss=LOSS, crashes=4, faults_end_at=60.0))
PARTED = Setting(faults=Faults(loss=LOSS, partition_at=25.0, partition_seconds=30.0, faults_end_at=70.0))
MERGING = Setting(
    rules=replace(
        small_rules(5, 10),
        instances=InstanceRules(count=2, fork_round=2),
        merge=MergeRules(period_rounds=2, first_round=3, guard=True),
    )
)


def mixed(setting: Setting, liars: Mapping[int, Outgoing], *deeds: Deed) -> Play:
    """Return an attack by liars, and by strangers with these deeds, or all deeds where none is named."""
    made = {number: Liar(sends=sends) for number, sends in liars.items()}
    return played(setting, made, strangers=lambda: Strangers(deeds=deeds))


# --- tickets ---------------------------------------------------------------------------------------------------------


def one_ticket_many_places(seed: int) -> Outcome:
    """Six identities use a link of one seat at six members at once."""
    attackers = Strangers(deeds=(knocking(invitation(1)),), names=stranger_names(6))
    result = fight(seed, Setting(rounds=24), adversary=attackers)
    seated = let_in(result)
    return judged(
        result, f"{len(seated)} seats of a link of one" if len(seated) > 1 else "", sent=f"6 identities, {len(seated)} let in"
    )


def revoked_in_a_race(seed: int) -> Outcome:
    """The author revokes a link of 50 seats while identities join by it, one after another."""
    attackers = Strangers(deeds=(knocking(invitation(50)),), names=stranger_names(2))
    revoked: list[int] = []

    def revokes(machine: Machine, _peer: PeerId, message: object) -> Sent:
        head = machine.process.agreement.ledger.head if machine.process is not None else None
        if isinstance(message, Heartbeat) and head is not None and head.round >= 4:
            message = replace(message, statements=(statement("revoke", KEY, 1),))
        return at_once(message)

    result = fight(seed, Setting(rounds=24), adversary=attackers, liars={0: Liar(sends=revokes)})
    entries = [result.arena.entries[round] for round in sorted(result.arena.entries)]
    for entry in entries:
        revoked += [entry.plan.round] if entry.value.statements else []
    late = [
        entry.plan.round
        for entry in entries
        if revoked and entry.plan.round > revoked[0] and any(join.ticket is not None for join in entry.value.joined)
        if any(join.peer not in _seated_before(entries, entry.plan.round) for join in entry.value.joined)
    ]
    problem = f"rounds {late} let in by a link that was revoked in round {revoked[0]}" if late else ""
    return judged(
        result,
        problem,
        "" if revoked else "the statement came into no plan",
        sent=f"link revoked in round {revoked[:1]}, {len(let_in(result))} let in",
    )


def ghosts_of_a_link(num_names: int) -> Play:
    """Identities with seats of one link, among five hosts, never report, and plans give them instances to hold."""
    deeds, names = (knocking(invitation(50)),), stranger_names(num_names)
    return played(Setting(rounds=24), {}, strangers=lambda: Strangers(deeds=deeds, names=names))


def _seated_before(entries: Sequence[object], round: int) -> set[PeerId]:
    return {peer for entry in entries if entry.plan.round < round for peer in roster_of(entry.plan)}  # type: ignore[attr-defined]


def ban_evasion(seed: int) -> Outcome:
    """A banned identity asks again with the same link, as the former member that it is, with a forged lifting of its ban."""
    banned = stranger_names(1)[0]
    knock = knocking(invitation(3))

    def evades(at: Aim) -> tuple[object, ...]:
        (beat,) = knock(at)
        assert isinstance(beat, Heartbeat)
        forged = replace(statement("unban", banned, 9), signature=at.port.sign(at.me, b"unban"))
        return (replace(beat, statements=(forged, statement("unban", banned, 10, signer=at.me))),)

    def bans(machine: Machine, _peer: PeerId, message: object) -> Sent:
        plan = machine.process.agreement.ledger.plans[-1] if machine.process is not None else None
        if isinstance(message, Heartbeat) and plan is not None and banned in roster_of(plan):
            message = replace(message, statements=(statement("ban", banned, 1),))
        return at_once(message)

    attackers = Strangers(deeds=(evades,), names=(banned,))
    result = fight(seed, Setting(rounds=24), adversary=attackers, liars={0: Liar(sends=bans)})
    rounds = rounds_where(result, lambda entry: banned in roster_of(entry.plan))
    banned_in = rounds_where(result, lambda entry: entry.value.statements)
    back = [round for round in rounds if banned_in and round > banned_in[0]]
    return judged(
        result,
        f"it had a seat again in rounds {back}" if back else "",
        "" if banned_in else "no plan carries the ban",
        sent=f"seated in rounds {rounds}, banned in {banned_in[:1]}",
    )


# --- old and odd messages --------------------------------------------------------------------------------------------


def replays_of_a_stranger(seed: int) -> Outcome:
    """A stranger sends again, for the whole run, all signed messages of an open run's members that it received."""
    heard: list[object] = []

    def taps(_machine: Machine, _peer: PeerId, message: object) -> Sent:
        heard.append(message)
        return at_once(message)

    def replays(at: Aim) -> tuple[object, ...]:
        return tuple(at.port.random.sample(heard, min(12, len(heard))))

    return mixed(Setting(admission="open"), {LIAR: taps}, replays)(seed)


def farewells_of_former_lives(seed: int) -> Outcome:
    """Signed leave messages of members that came back are sent again, to everybody, for the rest of the run."""
    farewells: list[Leave] = []

    def remembers(machine: Machine, _peer: PeerId, message: object) -> Sent:
        if isinstance(message, Heartbeat) and not farewells:  # it left at this beat once
            honest = name_of(2)
            farewells.append(signed_by(honest, Leave(peer=honest, run=RUN, beat=message.beat, signature="")))
        if isinstance(message, Heartbeat) and machine.clock() > 0:
            return at_once(*farewells, replace(message, leaves=tuple(farewells)))
        return at_once(message)

    return by_member(remembers)(seed)


def odd_order(seed: int) -> Outcome:
    """A member serves entries backwards, doubled, and with gaps to members that crash and start again."""
    chance = Random(seed)

    def shuffles(_machine: Machine, _peer: PeerId, message: object) -> Sent:
        if not isinstance(message, Entries):
            return at_once(message)
        entries = list(message.entries)
        chance.shuffle(entries)
        return at_once(Entries(entries=tuple(entries[::-1])), Entries(entries=tuple(entries + entries)), message)

    return played(CRASHES, {LIAR: Liar(sends=shuffles)})(seed)


def legal_giants(at: Aim) -> tuple[object, ...]:
    """Send messages of strangers that are as long as the border allows."""
    beat = strangers.beat(at)
    request = strangers.join_request(at.me, lambda p: at.port.sign(at.me, p), at.plan, beat=beat.beat)
    statements = tuple(statement("ban", PeerId("y" * MAX_PEER_ID_CHARS), serial, signer=at.me) for serial in range(16))
    leave = Leave(peer=at.me, run=at.plan.run, beat=10**15, signature="f" * 1024)
    full = replace(beat, heard=(10**17,) * MAX_HEARD, joins=(request,) * 16, leaves=(leave,) * 16, statements=statements)
    return (full, Entries(entries=tuple(at.ledger.entries) * 4))


def forgotten_half(seed: int) -> Outcome:
    """Countless names are sent to both sides of a partition, so that each forgets the names of the other."""
    flood = strangers.Flood(beats=24)
    attackers = Strangers(deeds=(flood,), until=60.0)
    result = fight(seed, replace(PARTED, admission="open"), adversary=attackers)
    return judged(result, sent=f"requests of {flood.num_names} names")


ALIKE = tuple(PeerId(name_of(number)[:-1] + char) for number in range(2) for char in "ax")
"""Names of members but for the last character."""
OPEN = Setting(admission="open")

VARIANTS: tuple[Scenario, ...] = (
    Scenario("everything at once", mixed(SEVEN, {1: members.lies_about_averages, 4: members.withholds_its_votes})),
    Scenario(
        "two liars of one mind",
        played(SEVEN, {1: Liar(sends=members.accuses_all), 4: Liar(sends=members.starts_attempts)}),
    ),
    Scenario(
        "proposer and reducer at once",
        by_reducer(
            members.hands_out_two_averages,
            applies_nothing_wrong,
            sends=members.together(members.proposes_alone, members.lies_about_averages),
        ),
    ),
    Scenario("a reducer that divides every round", by_reducer(members.hands_out_different_averages, applies_nothing_wrong)),
    Scenario("two signed votes on every average", by_member(members.signs_two_votes)),
    Scenario("two signed votes on every plan", by_member(members.votes_for_both)),
    Scenario("void votes", by_member(members.votes_void)),
    Scenario("two void voters of seven", played(SEVEN, dict.fromkeys((1, 4), Liar(sends=members.votes_void)))),
    Scenario("old messages of a member", played(Setting(), lambda seed: {LIAR: Liar(sends=members.Replays(Random(seed)))})),
    Scenario("old messages through a stranger", replays_of_a_stranger),
    Scenario("farewells of former lives", farewells_of_former_lives),
    Scenario("one ticket in many places", one_ticket_many_places),
    Scenario("a link revoked in a race", revoked_in_a_race),
    Scenario("more ghosts than hosts, by one link", ghosts_of_a_link(6)),
    Scenario("twelve ghosts that hold the last instance", ghosts_of_a_link(12)),
    Scenario("ban evasion", ban_evasion),
    Scenario("lying clocks", by_member(members.lies_about_time)),
    Scenario("comes and goes", by_member(members.comes_and_goes)),
    Scenario("starving one host", by_member(members.starves(name_of(0)))),
    Scenario("deaf to one member", by_member(members.is_deaf_to(name_of(0)))),
    Scenario("names without content", by_member(members.supplies_nothing)),
    Scenario("large questions of a member", by_member(members.asks_for_everything)),
    Scenario("the run is over, it says", by_member(members.ends_the_run)),
    Scenario("all the work for one", by_reports(members.claims_all_speed)),
    Scenario("the slowest device there can be", by_reports(members.claims_no_speed)),
    Scenario("extreme reports while peers merge", by_reports(members.ReportsExtremes(Random(7)), setting=MERGING)),
    Scenario("restarts in the middle", mixed(CRASHES, {LIAR: members.takes_over_alone}, strangers.breaks_collections)),
    Scenario(
        "a partition and one that tells both sides",
        played(PARTED, {LIAR: Liar(sends=members.forges_history)}, names_no_dead_state),
    ),
    Scenario(
        "broken collections in a partition",
        played(PARTED, {}, strangers=lambda: Strangers(deeds=(strangers.breaks_collections,), names=stranger_names(1))),
    ),
    Scenario("a forgotten half", forgotten_half),
    Scenario("ledger entries in odd order", odd_order),
    Scenario("colliding names", played(OPEN, {}, strangers=lambda: Strangers(names=ALIKE))),
    Scenario("legal giants", mixed(Setting(), {}, legal_giants)),
    Scenario("forty identities at an open door", played(OPEN, {}, strangers=lambda: Strangers(names=stranger_names(40)))),
)
