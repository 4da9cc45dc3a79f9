"""The checkers know what a restarted peer knows: they call a lease broken where it is, and nowhere else."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.ledger_entry import Head, LedgerEntry
from adloco_p2p.core.model.messages import Heartbeat, Prepare, Promise, Promised
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.sim.checkers import BEATS_PER_LIFE, Checkers, Violation
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.healing import Healing
from adloco_p2p.sim.identities import verify
from adloco_p2p.sim.world import World

RESTARTED_AT = 100.0
BEAT = BEATS_PER_LIFE + 7


def heartbeat(roster: Digest, *, beat: int) -> Heartbeat:
    """Of a member that passes on what it knows of the last of the four."""
    head = Head(round=2, samples=0, digest=roster)
    return Heartbeat(beat=BEATS_PER_LIFE, roster=roster, heard=(0, 0, 0, beat), head=head, have=0)


def four_peers() -> tuple[World, list[LedgerEntry]]:
    """A world in which nothing went wrong, and its first two entries."""
    world = World(1, peers=4, rounds=4, faults=Faults(faults_end_at=0.0))
    world.run()
    process = next(iter(world.machines.values())).process
    assert process is not None
    return world, list(process.agreement.ledger.since(1))[:2]


def checkers_of(world: World) -> Checkers:
    return Checkers(
        world.genesis,
        decide=world.decide,
        verify=verify,
        timing=world.timing,
        is_gentle=False,
        healing=Healing(world.genesis, verify=verify),
    )


def excluded_after_a_restart(*, later_beat: int) -> None:
    """The last of four peers is silent. The first one hears of its beat when it has just restarted from its journal; long after
    that, from another member and by a newer roster, of `later_beat`; then it agrees to a ballot without the silent one."""
    world, (first, second) = four_peers()
    me, sender, other, silent = (roster_entry.peer for roster_entry in first.plan.roster)
    checkers = checkers_of(world)
    for peer in (me, sender):
        checkers.booted(peer, 0.0)
    for signed in second.reports:
        checkers.reported(signed.report)
    checkers.persisting(me, first)
    checkers.decided(me, first.plan)
    checkers.died(me)

    checkers.booted(me, RESTARTED_AT)
    checkers.delivered(me, sender, heartbeat(first.value.plan, beat=BEAT), RESTARTED_AT)
    checkers.persisting(me, second)
    checkers.decided(me, second.plan)
    lease = world.timing.lease(4)
    for second_of_life in range(1, int(lease)):  # it stands still at no time
        checkers.woke(me, RESTARTED_AT + second_of_life)
    excluded_at = RESTARTED_AT + lease
    checkers.delivered(me, other, heartbeat(second.value.plan, beat=later_beat), excluded_at - 1.0)
    exclude(checkers, second.value.plan, sender=sender, me=me, silent=silent, now=excluded_at)


def exclude(checkers: Checkers, parent: Digest, *, sender: PeerId, me: PeerId, silent: PeerId, now: float) -> None:
    ballot = Ballot(attempt=1, peer=sender)
    for peer in (sender, me):
        checkers.persisting(peer, Promised(parent=parent, ballot=ballot))
    checkers.before_send(sender, Prepare(parent=parent, ballot=ballot, absent=(silent,)), now)
    checkers.before_send(me, Promise(parent=parent, ballot=ballot, accepted=None), now)


def test_a_beat_that_a_restarted_peer_understood_is_no_news_later() -> None:
    excluded_after_a_restart(later_beat=BEAT)


def test_a_beat_that_rose_within_the_lease_forbids_to_exclude_its_owner() -> None:
    with pytest.raises(Violation, match=r"whose beat came 1\.000 s ago"):
        excluded_after_a_restart(later_beat=BEAT + 1)


@pytest.mark.parametrize("later", [0, 1])
def test_a_copy_of_the_request_by_which_a_plan_seats_a_peer_is_no_news(later: int) -> None:
    """The plan brings the beat of the request, so the lease begins with the plan; a higher beat renews it."""
    world = World(1, peers=3, rounds=6, faults=Faults(faults_end_at=0.0))
    world.queue.at(4.0, world._join)
    world.run()
    process = next(iter(world.machines.values())).process
    assert process is not None
    entries = list(process.agreement.ledger.since(1))
    place = next(number for number, entry in enumerate(entries) if entry.value.joined)
    (request,) = entries[place].value.joined
    me, sender = (entry.peer for entry in entries[0].plan.roster[:2])
    checkers = checkers_of(world)
    for peer in (me, sender):
        checkers.booted(peer, 0.0)
    for entry in entries[: place + 1]:
        for signed in entry.reports:
            checkers.reported(signed.report)
        checkers.persisting(me, entry)
        checkers.decided(me, entry.plan)
    seated = entries[place].value.plan
    lease = world.timing.lease(len(entries[place].plan.roster))
    for second in range(1, int(lease)):
        checkers.woke(me, float(second))
    copy = replace(heartbeat(seated, beat=0), joins=(replace(request, beat=request.beat + later),))
    checkers.delivered(me, sender, copy, lease - 1.0)
    with pytest.raises(Violation, match=r"whose beat came 1\.000 s ago") if later else nullcontext():
        exclude(checkers, seated, sender=sender, me=me, silent=request.peer, now=lease)


@pytest.mark.parametrize("is_named_in_all", [True, False])
def test_a_peer_that_takes_part_in_one_of_a_liars_two_ballots_of_one_number_is_right_if_that_excludes_nobody_living(
    is_named_in_all: bool,
) -> None:
    """Seed 1359 of `tests.sim.half_valid`: a member proposed twice by one ballot, the first time with everybody absent."""
    world, (first, _) = four_peers()
    me, liar, living, _ = (roster_entry.peer for roster_entry in first.plan.roster)
    checkers, parent, ballot = checkers_of(world), first.value.plan, Ballot(attempt=1, peer=liar)
    checkers.booted(me, 0.0)
    checkers.persisting(me, first)
    checkers.decided(me, first.plan)
    checkers.delivered(me, living, heartbeat(parent, beat=BEAT), 1.0)
    for absent in ((living,), (living,) if is_named_in_all else ()):
        checkers.forged(Prepare(parent=parent, ballot=ballot, absent=absent))
    checkers.persisting(me, Promised(parent=parent, ballot=ballot))
    with pytest.raises(Violation, match="whose beat came") if is_named_in_all else nullcontext():
        checkers.before_send(me, Promise(parent=parent, ballot=ballot, accepted=None), 2.0)


def test_a_liar_that_restarts_submits_what_its_checkpoint_holds() -> None:
    """Its lies were not in there, so there are two reports of one round, and a plan may use either."""
    for seed in range(12):
        faults = Faults(liars=1.0, crashes=3, loss=0.2, faults_end_at=12.0)
        World(seed, peers=4, rounds=6, faults=faults).run()


def test_sides_of_a_partition_may_end_with_two_histories_and_hosts_of_one_never_with_two_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(1, peers=3, rounds=3, faults=Faults(faults_end_at=0.0))
    world.run()
    monkeypatch.setattr(world, "_may_end_apart", lambda finished, ended_at: True)
    machines = list(world.machines.values())
    world._check_one_state(machines, world.time)
    disk = machines[2].disk
    assert disk.durable is not None
    disk.states = {key: hashed("another", key) for key in disk.states}
    with pytest.raises(Violation, match="several plans or states"):
        world._check_one_state(machines, world.time)
    disk.durable = replace(disk.durable, plans=(*disk.durable.plans, replace(disk.durable.plans[-1], reason="another")))
    world._check_one_state(machines, world.time)
    monkeypatch.setattr(world, "_may_end_apart", lambda finished, ended_at: False)
    with pytest.raises(Violation, match="several plans or states"):
        world._check_one_state(machines, world.time)
