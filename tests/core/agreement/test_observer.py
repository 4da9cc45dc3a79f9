"""An observer: it ends with the members' ledger, checks every entry, and sends pings and pulls only."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.known_peers import MAX_KNOWN
from adloco_p2p.core.agreement.ledger_sync import PERIODS_OF_COLLECTING
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.agreement.observer import Observer
from adloco_p2p.core.ledger import fork_choice
from adloco_p2p.core.ledger.contributions import credited, leaderboard
from adloco_p2p.core.ledger.fork_choice import CandidateChain
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.effects import Send
from adloco_p2p.core.model.ledger_entry import Head, LedgerEntry
from adloco_p2p.core.model.messages import Entries, Heartbeat, Ping, PullEntries
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import LARGEST_COUNT, Digest, PeerId
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.sim.identities import verify
from tests.core.agreement.test_consensus import RULES, Swarm, decide
from tests.core.agreement.test_strangers import certified_alone, connect_to_run, entry_of, lies_beside
from tests.core.core_values import RUN, capacity, instance_report, peer

ME = PeerId("observer")


def observer(swarm: Swarm, *contacts: PeerId) -> Observer:
    return Observer(swarm.genesis, decide=decide, verify=verify, contacts=contacts, timing=Timing())


def trained(size: int, rounds: int, *, boast: int = 1, speed: float = 10.0) -> Swarm:
    """A swarm whose hosts all reported `rounds` rounds; the first of them claims `boast` times its samples, and a speed."""
    swarm = Swarm(size)
    swarm.deliver()
    for round in range(rounds):
        for name, each in swarm.peers.items():
            plan = swarm.plans[name][round - 1] if round else swarm.genesis
            items = tuple(
                replace(
                    instance_report(instance=item.instance, inner_steps=share.inner_steps),
                    samples=share.samples * (boast if name == peer(0) else 1),
                )
                for item in plan.instances
                for share in item.hosts
                if share.peer == name
            )
            offered = capacity(speed=speed if name == peer(0) else 10.0)
            report = Report(peer=name, round=round, plan=canonical.digest(plan), capacity=offered, instances=items)
            swarm.take(name, each.submit(report, swarm.now))
        swarm.deliver()
    return swarm


def converse(swarm: Swarm, reader: Observer, sends: Sequence[Send]) -> list[object]:
    """Carry messages between the observer and the members until none is left; those that the observer sent."""
    said: list[object] = []
    queue = list(sends)
    while queue:
        send = queue.pop(0)
        said.append(send.message)
        member = swarm.peers[send.peer]
        for outcome in member.receive(ME, send.message, swarm.now):
            if isinstance(outcome, Send) and outcome.peer == ME:
                queue += reader.receive(send.peer, outcome.message, swarm.now)
    return said


def members(swarm: Swarm) -> GossipAgreement:
    return swarm.peers[peer(0)]


def test_it_reads_the_whole_ledger_and_only_asks() -> None:
    swarm = trained(3, rounds=6)
    reader = observer(swarm, peer(1))
    said = converse(swarm, reader, reader.tick(swarm.now))
    assert reader.ledger.head == members(swarm).ledger.head and reader.ledger.head.round == 7
    assert {type(message) for message in said} == {Ping, PullEntries}
    assert all(ME not in [roster_entry.peer for roster_entry in each.ledger.plans[-1].roster] for each in swarm.peers.values())
    assert all(not each.members.candidates(swarm.now) for each in swarm.peers.values()), "it asked to join"


def test_it_asks_everybody_in_turn_and_not_more_often_than_said() -> None:
    swarm = trained(5, rounds=1)
    reader = observer(swarm, peer(4))
    asked = [send.peer for tenth in range(75) for send in reader.tick(swarm.now + tenth / 10)]
    assert len(asked) == 2 * 8 and {asked.count(name) for name in swarm.peers} == {3, 4}


def test_who_answers_is_alive_for_a_lease() -> None:
    swarm = trained(3, rounds=1)
    reader = observer(swarm, peer(0))
    assert not reader.is_alive(peer(0), swarm.now)
    answer = members(swarm).members.heartbeat(swarm.now)
    reader.receive(peer(0), answer, swarm.now)
    assert reader.is_alive(peer(0), swarm.now) and reader.is_alive(peer(0), swarm.now + 5)
    assert not reader.is_alive(peer(0), swarm.now + 60)
    reader.receive(peer(0), answer, swarm.now + 60)
    assert not reader.is_alive(peer(0), swarm.now + 60), "the same beat again is no sign of life"


@pytest.mark.parametrize("liar", [PeerId("stranger"), peer(1)])
def test_beats_that_another_peer_names_hide_no_member_from_an_observer(liar: PeerId) -> None:
    """Members that a false beat had put out of reach seemed silent after a lease, and an entry that calls them absent was
    followed."""
    swarm = trained(5, 3)
    reader, entry = well_met(swarm), emergency_of(swarm, peer(1))
    before, beats = list(reader.ledger.digests), {name: each.members.heartbeat(swarm.now) for name, each in swarm.peers.items()}
    reader.receive(liar, replace(beats[peer(1)], heard=(LARGEST_COUNT,) * 5), swarm.now)
    for second in range(1, 60):
        now = swarm.now + second
        for name, beat in beats.items():
            reader.receive(name, replace(beat, beat=beat.beat + second, heard=()), now)
        assert all(reader.is_alive(name, now) for name in swarm.peers)
    reader.receive(peer(1), Entries(entries=(entry,)), swarm.now + 60)
    assert reader.ledger.digests == before


def test_of_a_strangers_heartbeat_the_beats_of_others_do_not_count() -> None:
    swarm = trained(3, 1)
    reader, later = well_met(swarm), swarm.now + 60
    beat = members(swarm).members.heartbeat(swarm.now)
    reader.receive(PeerId("stranger"), replace(beat, heard=tuple(one + 1 for one in beat.heard)), later)
    assert not any(reader.is_alive(name, later) for name in swarm.peers)
    reader.receive(peer(0), replace(beat, heard=tuple(one + 1 for one in beat.heard)), later)
    assert reader.is_alive(peer(1), later) and reader.is_alive(peer(2), later)


def test_however_many_strangers_an_observer_hears_it_notes_the_beats_of_members() -> None:
    swarm = trained(3, 1)
    reader = well_met(swarm)
    beat, later = members(swarm).members.heartbeat(swarm.now), swarm.now + 60
    for number in range(MAX_KNOWN + 8):
        reader.receive(PeerId(f"stranger {number}"), replace(beat, heard=()), later)
    reader.receive(peer(0), replace(beat, beat=beat.beat + 1, heard=()), later)
    assert reader.is_alive(peer(0), later) and reader.is_alive(PeerId(f"stranger {MAX_KNOWN + 7}"), later)
    assert len(reader._beats) == MAX_KNOWN and len(reader._renewed_at) <= MAX_KNOWN + len(swarm.peers)
    fresh = observer(swarm)
    for number in range(MAX_KNOWN):
        fresh.receive(PeerId(f"stranger {number}"), replace(beat, heard=()), later)
    fresh.receive(peer(0), beat, later)
    assert fresh.is_alive(peer(0), later)


def test_a_forged_entry_is_refused() -> None:
    swarm = trained(3, rounds=4)
    entries = members(swarm).ledger.entries
    for number, entry in enumerate(entries):
        forged = replace(entry, plan=replace(entry.plan, reason="because"))
        reader = observer(swarm, peer(0))
        reader.receive(peer(0), Entries(entries=(*entries[:number], forged, *entries[number + 1 :])), swarm.now)
        assert reader.ledger.entries == entries[:number]


def test_of_two_histories_the_one_with_more_proven_samples_is_taken() -> None:
    """Both follow from the same first plan; one swarm trained longer."""
    short, long = trained(3, rounds=3), trained(3, rounds=6, speed=20.0)
    assert short.genesis == long.genesis and members(short).ledger.digests[3] != members(long).ledger.digests[3]
    for first, second in ((short, long), (long, short)):
        reader = observer(short, peer(0))
        converse(first, reader, reader.tick(first.now))
        converse(second, reader, reader.tick(first.now + 10))
        assert reader.ledger.head == members(long).ledger.head


@pytest.mark.parametrize("kind", ["replayed", "forged", "unconnected", "of one vote", "named as the end"])
def test_nothing_that_a_stranger_sends_costs_an_entry_of_a_history_that_is_collected(kind: str) -> None:
    """A history that is longer than a message, as after a long partition, would never be complete."""
    short, long = trained(3, rounds=4), trained(3, rounds=8, speed=20.0)
    reader, theirs = observer(short, peer(0)), members(long).ledger
    converse(short, reader, reader.tick(short.now))
    fork = next(place for place, ours in enumerate(reader.ledger.digests) if ours != theirs.digests[place])
    first, last = theirs.entry(fork), theirs.entries[-1]
    junk = {
        "replayed": first,
        "forged": replace(first, plan=replace(first.plan, reason="because")),
        "unconnected": replace(last, value=replace(last.value, parent=Digest("f" * 64))),
        "of one vote": emergency_of(trained(3, rounds=2), peer(1)),
        "named as the end": first,
    }[kind]
    beat, stranger = members(long).members.heartbeat(long.now), PeerId("stranger")
    for turn in range(2 * len(theirs.entries)):
        now = short.now + 10.0 + turn
        for send in reader.receive(peer(0), beat, now):
            assert isinstance(send.message, PullEntries)
            common = next(digest for digest in send.message.locator if digest in theirs.position)
            reader.receive(peer(0), Entries(entries=theirs.after(common, 1)), now)
        collected = reader._exchange._other.tip
        if kind == "named as the end" and collected:
            head = Head(round=theirs.position[collected[0]], digest=collected[0], samples=0)
            reader.receive(stranger, replace(beat, head=head), now)
        reader.receive(stranger, Entries(entries=(junk,)), now)
    assert reader.ledger.head == theirs.head


def test_a_history_that_nobody_continues_makes_room_for_another() -> None:
    short, long = trained(3, rounds=4), trained(3, rounds=8, speed=20.0)
    reader, theirs = observer(short, peer(0)), members(long).ledger
    converse(short, reader, reader.tick(short.now))
    fork = next(place for place, ours in enumerate(reader.ledger.digests) if ours != theirs.digests[place])
    reader.receive(peer(0), Entries(entries=(theirs.entry(fork),)), short.now)
    assert reader._exchange.is_collecting
    reader.receive(peer(0), Entries(entries=()), short.now + PERIODS_OF_COLLECTING)
    assert reader._exchange.is_collecting
    reader.receive(peer(0), Entries(entries=()), short.now + PERIODS_OF_COLLECTING + 1.0)
    assert not reader._exchange.is_collecting


def test_ones_own_history_goes_on_while_another_is_collected() -> None:
    short, longer, other = trained(3, rounds=4), trained(3, rounds=6), trained(3, rounds=8, speed=20.0)
    reader, theirs = observer(short, peer(0)), members(other).ledger
    converse(short, reader, reader.tick(short.now))
    fork = next(place for place, ours in enumerate(reader.ledger.digests) if ours != theirs.digests[place])
    reader.receive(peer(0), Entries(entries=(theirs.entry(fork),)), short.now)
    assert reader._exchange.is_collecting
    rest = members(longer).ledger.after(reader.ledger.digests[-1], 8)
    reader.receive(peer(1), Entries(entries=rest), short.now)
    assert rest and reader.ledger.head == members(longer).ledger.head
    assert reader._exchange.is_collecting, "a member that makes entries by its own vote alone ends no collection"


def test_a_member_goes_on_collecting_while_it_decides_plans() -> None:
    """A history that takes longer to come than a round lasts would never be there whole."""
    short, longer, other = trained(3, rounds=4), trained(3, rounds=6), trained(3, rounds=8, speed=20.0)
    member, theirs = members(short), members(other).ledger
    fork = next(place for place, ours in enumerate(member.ledger.digests) if ours != theirs.digests[place])
    member.receive(peer(1), Entries(entries=(theirs.entry(fork),)), short.now)
    rest = members(longer).ledger.after(member.ledger.digests[-1], 8)
    member.receive(peer(1), Entries(entries=rest), short.now)
    assert rest and member.ledger.head == members(longer).ledger.head
    assert member.consensus._exchange.is_collecting


def test_while_another_history_is_collected_one_donor_is_asked_at_a_time() -> None:
    """Its entries are as long as those of the own one; what is known, or nothing, is no answer that leads to a question."""
    short, other = trained(3, rounds=3), trained(3, rounds=12, speed=20.0)
    reader, theirs = observer(short, peer(0)), members(other).ledger
    converse(short, reader, reader.tick(short.now))
    fork = next(place for place, ours in enumerate(reader.ledger.digests) if ours != theirs.digests[place])
    first, second = theirs.entry(fork), theirs.entry(fork + 1)
    exchange, start = reader._exchange, short.now + 10.0

    def announced(number: int, tenth: int) -> list[PeerId]:
        return [send.peer for send in exchange.announced(reader, peer(number), theirs.head, now=start + tenth / 10)]

    def answered(number: int, tenth: int, *entries: LedgerEntry) -> list[PeerId]:
        return [send.peer for send in exchange.follow(reader, peer(number), entries, now=start + tenth / 10)]

    assert announced(11, 0) == [peer(11)]
    assert answered(11, 3, first) == [] and exchange.is_collecting, "it rests"
    assert announced(12, 4) == [peer(12)]
    assert [announced(number, 5) for number in (13, 14)] == [[], []]
    assert answered(11, 6, first) == answered(11, 6) == [], "the answer of 12 is awaited"
    assert answered(12, 7, second) == [peer(13)]
    assert answered(12, 8, first, second) == answered(14, 8, second) == [], "that of 13 is"


def test_another_history_is_collected_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never outranks the own one would otherwise grow in memory for as long as a peer sends it."""
    short, long = trained(3, rounds=3), trained(3, rounds=6, speed=20.0)
    ours, theirs = members(long).ledger, members(short).ledger.entries
    other = CandidateChain(decide, verify)
    assert [other.follow(ours, entry) is not None for entry in theirs] == [True] * len(theirs)
    monkeypatch.setattr(fork_choice, "MAX_COLLECTED_BYTES", sum(len(canonical.encode(entry)) for entry in theirs) - 1)
    other.forget()
    assert [other.follow(ours, entry) is not None for entry in theirs] == [True] * (len(theirs) - 1) + [False]
    assert not other.tip


def test_receipts_add_up_to_what_the_head_proves_and_a_boast_does_not_count() -> None:
    swarm = trained(3, rounds=5, boast=10)
    entries: list[LedgerEntry] = members(swarm).ledger.entries
    rows = leaderboard(credited(swarm.genesis, entries), sequence_length=16)
    assert sum(row.samples for row in rows) == members(swarm).ledger.head.samples > 0
    assert [row.samples for row in rows] == sorted((row.samples for row in rows), reverse=True)
    planned = {
        name: sum(
            share.samples
            for plan in members(swarm).ledger.plans[:5]
            for item in plan.instances
            for share in item.hosts
            if share.peer == name
        )
        for name in swarm.peers
    }
    assert {row.peer: row.samples for row in rows} == {name: samples for name, samples in planned.items() if samples}
    assert all(row.tokens == 16 * row.samples and row.last_round == 4 and row.num_rounds <= 5 for row in rows)


def test_messages_that_are_not_for_observers_change_nothing() -> None:
    swarm = trained(1, rounds=1)
    reader = observer(swarm)
    assert reader.tick(swarm.now) == [Send(peer=peer(0), message=Ping(target=peer(0), is_relayed=False))]
    assert reader.receive(peer(0), Ping(target=ME, is_relayed=False), swarm.now) == []
    assert reader.receive(peer(0), PullEntries(locator=()), swarm.now) == []
    heartbeat = members(swarm).members.heartbeat(swarm.now)
    assert isinstance(heartbeat, Heartbeat)
    assert [type(send.message) for send in reader.receive(peer(0), heartbeat, swarm.now)] == [PullEntries]
    assert genesis(RUN, [(peer(0), capacity())], RULES) == reader.ledger.plans[0]


def emergency_of(swarm: Swarm, name: PeerId) -> LedgerEntry:
    """One member says that all others are gone."""
    ledger = swarm.peers[name].ledger
    others = [other for other in roster_of(ledger.plans[-1]) if other != name]
    return entry_of(name, ledger, absent=others, departed=others)


def well_met(swarm: Swarm) -> Observer:
    """It has the members' ledger, and a heartbeat of each of them."""
    connect_to_run(swarm)
    reader = observer(swarm, *swarm.peers)
    for _ in range(3):
        for name, member in swarm.peers.items():
            converse(swarm, reader, reader.receive(name, member.members.heartbeat(swarm.now), swarm.now))
    assert reader.ledger.digests == swarm.peers[peer(0)].ledger.digests
    return reader


def test_an_observer_follows_an_emergency_entry_only_where_it_sees_the_emergency() -> None:
    swarm = trained(5, 3)
    reader, entry = well_met(swarm), emergency_of(swarm, peer(1))
    before = list(reader.ledger.digests)
    reader.receive(peer(1), Entries(entries=(entry,)), swarm.now)
    assert reader.ledger.digests == before, "the others live, and their ledgers end here"

    later = swarm.now + 60.0
    reader.receive(peer(1), Entries(entries=(entry,)), later)
    assert reader.ledger.digests[-1] == entry.value.plan, "nobody was heard of for a minute"


def test_an_observer_that_was_not_there_follows_the_members_through_an_emergency() -> None:
    swarm = trained(5, 3)
    reader, entry = well_met(swarm), emergency_of(swarm, peer(1))
    ahead = Head(round=entry.plan.round, digest=entry.value.plan, samples=0)
    for name in list(swarm.peers)[:3]:
        beat = replace(swarm.peers[name].members.heartbeat(swarm.now), head=ahead)
        reader.receive(name, beat, swarm.now)
    reader.receive(peer(1), Entries(entries=(entry,)), swarm.now)
    assert reader.ledger.digests[-1] == entry.value.plan


def test_a_member_that_votes_twice_leads_no_observer_from_an_entry_that_it_certified_alone() -> None:
    swarm = trained(5, rounds=3)
    liar, *others = sorted(swarm.peers)
    ledger = swarm.peers[liar].ledger
    reader = observer(swarm, liar)
    reader.receive(liar, Entries(entries=tuple(ledger.entries[:-1])), swarm.now)
    for name in others:
        reader.receive(name, swarm.peers[name].members.heartbeat(swarm.now), swarm.now)
    alone = certified_alone(liar, ledger.entries[-1], absent=others)
    reader.receive(liar, Entries(entries=(alone,)), swarm.now)
    assert reader.ledger.entries[-1] == alone, "its plan is that of all"
    lies = lies_beside(ledger, liar, absent=others)
    reader.receive(liar, Entries(entries=tuple(lies.entries[-2:])), swarm.now)
    assert lies.head.rank > reader.ledger.head.rank and reader.ledger.entries[-1] == alone
