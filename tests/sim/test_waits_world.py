"""No host waits for ever: the hosts that hold the newest state are killed or silent, above all near the end of a run, when no
plan ends a wait any more."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.events import Commanded
from adloco_p2p.core.model.protocol import FIRST_UPGRADABLE, NEWEST
from adloco_p2p.core.model.rules import AdmissionRules, BatchRules, InstanceRules, Rules, WorkRules
from adloco_p2p.core.peer.finishing import ALONE, NO_FINAL_MODEL, NOT_THE_MODEL
from adloco_p2p.core.peer.lifecycle import LAST_CHECKPOINT
from adloco_p2p.sim.adversary import Liar
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.simulate import run_seed
from adloco_p2p.sim.world import Parts, World
from benchmarks.adversary.ends import silent_from

LIMIT_SECONDS = 1200.0
KILLS = Faults(crash_chance=1e-12, faults_end_at=LIMIT_SECONDS)
"""A machine that is killed comes back after 0.05 to 12 s."""


def world_of(seed: int, *, peers: int, rounds: int, count: int, checkpoint_period: int, silent: int | None = None) -> World:
    rules = Rules(
        work=WorkRules(rounds=rounds, inner_steps=4),
        instances=InstanceRules(count=count, fork_round=2, start="same" if count == 1 else "fork"),
        batch=BatchRules(initial_batch=8, max_batch=64),
        admission=AdmissionRules(kind="open"),
    )
    liars = {} if silent is None else {peers - 1: Liar(sends=silent_from(silent))}
    parts = Parts(checkpoint_period=checkpoint_period, liars=liars)
    return World(seed, peers=peers, rounds=rounds, faults=KILLS, rules=rules, parts=parts)


def play(world: World) -> None:
    """Until every honest process has ended."""
    while world.queue.now < LIMIT_SECONDS and not world.is_over():
        world.queue.step()
        world.checkers.at(world.queue.now)
    assert world.is_over(), "a host waits for ever"


def finished(world: World) -> list[Machine]:
    stops = ((machine, machine.process.stop) for machine in world.machines.values() if machine.process is not None)
    return [machine for machine, stop in stops if machine.is_honest and stop is not None and stop.is_finished]


def kill_at(world: World, round: int, waves: list[list[tuple[float, int]]]) -> None:
    """Once a machine knows the plan of this round: each wave is a list of (seconds later, number of the machine)."""

    def look() -> None:
        heads = [machine.process.agreement.ledger.head.round for machine in world.machines.values() if machine.process]
        if max(heads, default=0) < round:
            world.queue.after(0.1, look)
            return
        machines = list(world.machines.values())
        for wave in waves:
            for later, number in wave:
                world.queue.after(later, machines[number].crash, "the test kills it")

    world.queue.after(0.1, look)


@pytest.mark.parametrize("known", [4, 7])
def test_all_hosts_are_killed_long_after_their_last_checkpoint_and_the_run_ends(known: int) -> None:
    """All come back further behind than rounds are kept, drop their states, and know from the journal that the others had the
    newest one. Once with the last plan and once before it: nobody reports, so no plan follows."""
    world = world_of(26, peers=3, rounds=7, count=1, checkpoint_period=100)
    kill_at(world, known, [[(0.5, 0), (0.5, 1), (0.5, 2)]])
    play(world)
    machines = finished(world)
    assert len(machines) == 3 and all(machine.life == 2 for machine in machines)
    world._check_one_state(machines, world.time)


def random_kills(seed: int) -> World:
    """One to three waves of kills within 6 s of one of the last three plans; some runs have a silent member, too."""
    random = Random(f"waits {seed}")
    peers, rounds, has_silent = random.randint(2, 4), random.randint(3, 7), random.random() < 0.3
    world = world_of(
        seed,
        peers=peers + has_silent,
        rounds=rounds,
        count=random.choice((1, 1, 2)),
        checkpoint_period=random.choice((2, 4, 100)),
        silent=rounds - random.randint(0, 2) if has_silent else None,
    )
    share = random.choice((0.3, 0.6, 1.0))
    waves = []
    for _ in range(random.randint(1, 3)):
        at = random.uniform(0.0, 6.0)
        waves.append(
            [(at + random.choice((0.0, random.random())), number) for number in range(peers) if random.random() < share]
        )
    kill_at(world, rounds - random.randint(0, 2), waves)
    return world


def check_random_kills(seeds: range) -> None:
    """That all end, that a history ends with one model, and that a peer without it ends with the error that states so."""
    for seed in seeds:
        world = random_kills(seed)
        play(world)
        check_one_model(world)


def check_one_model(world: World) -> None:
    machines = finished(world)
    models: dict[str, set[object]] = {}
    for machine in machines:
        durable = machine.disk.durable
        assert durable is not None and durable.is_finished
        last = models.setdefault(canonical.digest(durable.plans[-1]), set())
        last |= {machine.disk.states[durable.round, instance] for instance in durable.held}
    assert all(len(found) <= 1 for found in models.values()), f"a run ends with several models: {models}"
    others = [machine for machine in world.machines.values() if machine.is_honest and machine not in machines]
    errors = {machine.process.stop.error for machine in others if machine.process is not None and machine.process.stop}
    assert errors <= {NOT_THE_MODEL}, errors


def test_kills_near_the_end_of_a_run_leave_nobody_waiting() -> None:
    check_random_kills(range(8))


def test_what_a_silent_member_agreed_on_alone_breaks_no_promise() -> None:
    """It outlived two others for longer than a lease and went on without them. It sends its history to nobody; they come back
    and go on together, as a majority."""
    check_random_kills(range(318, 319))


HARSH_SEEDS = {
    0: "hosts that drained in one round relied on each other",
    54: "a host waited for a state that it had given up itself in a change of histories",
    64: "newcomers that had the only copies reported none of them",
    79: "the world ended before one that drained had saved the model",
    118: "the one that trained the last round left before the others had its average",
    142: "a host waited for an average of hosts that had gone on without it",
    257: "a newcomer waits for members that never come back",
    262: "the last one that had the state left at once",
}


DOUBTFUL_SEEDS = {
    40: "of three hosts of the next round two left in this one, at once",
    52: "the same, one of them in a retry with the third",
    77: "the vote of one that had left was lost on its way to one host",
    84: "one host knew, told nobody, and left",
    124: "a receiver that got one of two void votes asked for the other one a minute later",
    67: "a receiver that got one of two votes did so, and lacked a state that the others had gone on from",
    89: "the report that named the only copy came after the plan, and was dropped",
    218: "two of four had left, and the void vote of the third came after the fourth had ended the round",
    166: "the last plan merged away an instance whose state only the reports that it was decided from name",
}
"""Of the same world with bytes measured, as `simulate` plays it: the first four ended in doubt about a round that nobody had
begun."""
NEWER_SEEDS = {89: "the state of a probe's source came too late to be measured, and no newer one was fetched for the merge"}
"""Of the first world; the seeds above failed with the first protocol, with which they are played."""
MODEL_LEFT = [(184, True, FIRST_UPGRADABLE), (30, False, NEWEST)]
"""Seeds of the same worlds that end with E314 for all that are left, as they must: the user has the last host of the history
that won leave at once, and those that are left have an older state of the history that lost, or none (docs/limits.md)."""


def violation_of(seed: int, *, measures_bytes: bool, protocol: int) -> str | None:
    """Every half minute half of the swarm leaves, and as many join."""
    faults = Faults(loss=0.1, churn=1.0, partition_at=10.0, partition_seconds=20.0, faults_end_at=80.0)
    parts = Parts(protocol=protocol)
    result = run_seed(seed, peers=6, rounds=6, faults=faults, round_seconds=10.0, measures_bytes=measures_bytes, parts=parts)
    return result.violation


@pytest.mark.parametrize(
    ("seed", "measures_bytes", "protocol"),
    [
        *((seed, False, FIRST_UPGRADABLE) for seed in HARSH_SEEDS),
        *((seed, True, FIRST_UPGRADABLE) for seed in DOUBTFUL_SEEDS),
        *((seed, False, NEWEST) for seed in NEWER_SEEDS),
    ],
)
def test_states_outlive_those_that_trained_them(seed: int, *, measures_bytes: bool, protocol: int) -> None:
    """Each seed once failed for its own reason."""
    assert violation_of(seed, measures_bytes=measures_bytes, protocol=protocol) is None


@pytest.mark.parametrize(("seed", "measures_bytes", "protocol"), MODEL_LEFT)
def test_where_the_last_host_leaves_at_once_those_that_are_left_do_not_call_an_older_state_the_model(
    seed: int, *, measures_bytes: bool, protocol: int
) -> None:
    assert violation_of(seed, measures_bytes=measures_bytes, protocol=protocol) == "nobody has ended the run"


@pytest.mark.heavy
@pytest.mark.parametrize("block", range(20))
def test_many_kills_near_the_end_of_a_run_leave_nobody_waiting(block: int) -> None:
    check_random_kills(range(8 + 20 * block, 28 + 20 * block))


@pytest.mark.parametrize("command", ["drain", "leave"])
@pytest.mark.parametrize("seed", range(3))
def test_a_peer_that_comes_back_to_nobody_does_not_take_its_own_model_for_that_of_the_run(seed: int, command: Command) -> None:
    """It leaves before the last rounds, two others end the run, and it trains the rest alone. What it trained is saved."""
    world = world_of(seed, peers=3, rounds=8, count=1, checkpoint_period=1)
    others, late = list(world.machines.values())[:2], list(world.machines.values())[2]
    play_until(world, lambda: late.process is not None and late.process.agreement.ledger.head.round >= 4)
    late.command(Commanded(command=command, reason="the user"))
    play_until(world, world.is_over)
    assert finished(world) == others
    late.boot()
    play_until(world, world.is_over)
    stop, durable = late.process.stop if late.process is not None else None, late.disk.durable
    assert stop is not None and stop.error == NOT_THE_MODEL and finished(world) == others
    assert durable is not None and not durable.is_finished
    if stop.reason == ALONE:  # else it lacks the state that it would have to go on from, which nobody brings
        assert durable.round == 8
    else:
        assert stop.reason == NO_FINAL_MODEL


@pytest.mark.parametrize("peers", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_half_of_a_swarm_that_comes_back_to_nobody_does_not_end_the_run_a_second_time(seed: int, peers: int) -> None:
    """Killed before the last rounds; the other half ends the run. Those that come back together agree on the rest by emergency
    entries, and are no majority of those that decided before."""
    world = world_of(seed, peers=peers, rounds=8, count=1, checkpoint_period=1)
    machines = list(world.machines.values())
    others, late = machines[: peers // 2], machines[peers // 2 :]
    play_until(world, lambda: all(m.process is not None and m.process.agreement.ledger.head.round >= 4 for m in machines))
    for machine in late:
        machine.is_gone = True
        machine.crash("the test kills it")
    play_until(world, world.is_over)
    assert finished(world) == others, "those that saw the others fall silent end the run"
    for machine in late:
        machine.is_gone = False
        machine.boot()
    play_until(world, world.is_over)
    assert finished(world) == others
    assert all(m.process is not None and m.process.stop is not None and m.process.stop.error == NOT_THE_MODEL for m in late)


@pytest.mark.parametrize("command", ["leave", None])
def test_a_peer_that_saw_the_other_fall_silent_ends_the_run_even_after_a_restart(command: Command | None) -> None:
    """Of two. The other one leaves politely or is killed for good, and this one goes on alone."""
    world = world_of(1, peers=2, rounds=9, count=1, checkpoint_period=1)
    one, other = world.machines.values()
    play_until(world, lambda: one.process is not None and one.process.agreement.ledger.head.round >= 4)
    other.is_gone = True
    if command is None:
        other.crash("the test kills it")
    else:
        other.command(Commanded(command=command, reason="the user"))
    play_until(world, lambda: one.process is not None and one.process.agreement.ledger.head.round >= 7)
    one.crash("the test kills it")
    play_until(world, world.is_over)
    assert one.life == 2 and finished(world) == [one]


def test_the_model_is_gone_where_the_last_that_had_a_state_vanished_or_left_at_once() -> None:
    world = world_of(1, peers=2, rounds=9, count=1, checkpoint_period=1)
    one, other = world.machines.values()
    play_until(world, lambda: one.process is not None and one.process.agreement.ledger.head.round >= 4)
    one.is_gone = True
    one.command(Commanded(command="drain", reason="the user"))
    play_until(world, lambda: one.process is not None and one.process.stop is not None)
    assert not world._is_model_gone(), "the other one is still there"
    stopped_at = world.queue.now
    play_until(world, lambda: world.queue.now > stopped_at)
    other.is_gone = True
    other.crash("the test kills it")
    assert world._is_model_gone(), "it vanished after the first one had stopped"
    assert one.process is not None and one.process.stop is not None
    other.crashed_at = stopped_at - 1.0
    assert not world._is_model_gone(), "the last one could save its state"
    one.process.stop = replace(one.process.stop, reason=LAST_CHECKPOINT)
    assert not world._is_model_gone(), "and should have"
    one.process.stop = replace(one.process.stop, is_urgent=True)
    assert world._is_model_gone()


def test_the_model_is_gone_where_a_peer_that_lives_lost_its_seat_after_its_last_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """It drops the state with the seat (seed 214 of the command in `docs/limits.md`)."""
    world = world_of(1, peers=2, rounds=9, count=1, checkpoint_period=1)
    one, other = world.machines.values()
    play_until(world, lambda: one.process is not None and one.process.agreement.ledger.head.round >= 4)
    one.is_gone = True
    one.crash("the test kills it")
    assert not world._is_model_gone(), "the other one is still there, with its seat"
    other.reported = [report for report in other.reported if report.round == 0]
    assert not world._is_model_gone(), "and still had it in the plans since then"
    assert other.process is not None
    entries = [replace(entry, plan=replace(entry.plan, roster=())) for entry in other.process.agreement.ledger.since(1)]
    monkeypatch.setattr(other.process.agreement.ledger, "since", lambda number: iter(entries))
    assert world._is_model_gone()


@pytest.mark.parametrize("command", ["drain", "pause"])
@pytest.mark.parametrize("later", [0.0, 1.0, 2.0])
def test_a_peer_that_ends_while_it_is_alone_waits_for_those_that_join_meanwhile(command: Command, later: float) -> None:
    """Two have asked to join, and no plan has them yet. The next plans give all work to the one that ends: it stays until
    those after them give it to the two."""
    world = world_of(1, peers=1, rounds=8, count=1, checkpoint_period=1)
    (founder,) = world.machines.values()
    play_until(world, lambda: founder.process is not None and founder.process.agreement.ledger.head.round >= 2)
    joiners = [world._new_machine(name_of(number)) for number in (1, 2)]
    for machine in joiners:
        machine.boot()
    asked_at = world.queue.now + later
    play_until(world, lambda: world.queue.now >= asked_at)
    assert founder.process is not None and founder.process.agreement.ledger.head.round == 2, "no plan has the joiners"
    founder.is_gone = True
    founder.command(Commanded(command=command, reason="the user"))
    play(world)
    assert finished(world) == joiners
    world._check_one_state(joiners, world.time)


def play_until(world: World, is_reached: Callable[[], bool]) -> None:
    while world.queue.now < LIMIT_SECONDS and not is_reached():
        world.queue.step()
    assert is_reached()
