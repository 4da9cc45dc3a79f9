"""Reducers that lie and show nobody what would prove it, and complaints without a cause: scenarios of the simulated world."""

from collections.abc import Callable, Collection
from dataclasses import replace

from adloco_p2p.core.model.complaints import Complaint
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.suspension import suspended
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.world import Parts, small_rules
from benchmarks.adversary import members
from benchmarks.adversary.arena import Result, Setting, fight
from benchmarks.adversary.scenario import Outcome, Scenario, judged

FIVE = Setting(rounds=14)
SEVEN = Setting(peers=7, rounds=16, rules=replace(small_rules(7, 16), instances=InstanceRules(count=1, start="same")))
"""One instance, so that three liars of seven are a minority of its hosts."""
ROUNDS_TO_A_SUSPENSION = 12
"""A part of a reducer that lies about all of them is drawn by one host or another in about every second round. Complaints
take three rounds to a plan; then all look at that reducer, and after two averages more, and three rounds, it is suspended."""
VICTIM = 0
"""Number of the founder that liars complain about; of the lowest name, so it has the first place wherever it is a host."""


def one_wrong_average(host: PeerId, average: object) -> object:
    """Of a reducer that returns the same wrong sum to everybody."""
    del host
    return hashed("wrong", average)


def silence(setting: Setting, *, reducers: Collection[int], silent: Collection[int]) -> Callable[[int], Outcome]:
    """These reducers lie, and the silent ones show nobody what they sent to them."""

    def play(seed: int) -> Outcome:
        liars = {*reducers, *silent}
        parts = Parts(
            returned=dict.fromkeys(reducers, one_wrong_average),
            strategies={number: members.together() for number in liars},
            withholding=frozenset(silent),
        )
        result = fight(seed, setting, parts=parts)
        return judged(
            result,
            _ends_soon(result, silent),
            suspensions_of_the_honest(result),
            sent=f"{result.arena.num_wrong_steps} wrong steps",
        )

    return play


def complaining(setting: Setting, liars: Collection[int]) -> Callable[[int], Outcome]:
    """Every report of these complains about one honest host, which shows everything."""

    def play(seed: int) -> Outcome:
        sent = [0]

        def complains(report: Report) -> Report:
            said = Complaint(round=report.round, contributor=VICTIM, reducer=VICTIM)
            sent[0] += len(report.instances)
            return replace(report, instances=tuple(replace(item, complaint=said) for item in report.instances))

        parts = Parts(alterations=dict.fromkeys(liars, complains), strategies={number: members.together() for number in liars})
        result = fight(seed, setting, parts=parts)
        carried = max(len(item.complaints) for entry in result.arena.entries.values() for item in entry.plan.instances)
        return judged(
            result,
            suspensions_of_the_honest(result),
            "" if carried else "no plan had a complaint",
            sent=f"{sent[0]} complaints",
        )

    return play


def _suspensions(result: Result) -> dict[PeerId, int]:
    """Peers, and the round of the first plan in which they are suspended."""
    found: dict[PeerId, int] = {}
    for round, entry in sorted(result.arena.entries.items()):
        for item in entry.plan.instances:
            for peer in suspended(item.hosts, round):
                assert all(share.samples == 0 for share in item.hosts if share.peer == peer)
                found.setdefault(peer, round)
    return found


def _ends_soon(result: Result, silent: Collection[int]) -> str:
    found = _suspensions(result)
    late = [number for number in silent if found.get(name_of(number), ROUNDS_TO_A_SUSPENSION + 1) > ROUNDS_TO_A_SUSPENSION]
    return f"founders {late} were not suspended by round {ROUNDS_TO_A_SUSPENSION}" if late else ""


def suspensions_of_the_honest(result: Result) -> str:
    honest = {machine.peer for machine in result.arena.honest()}
    hit = sorted(honest & _suspensions(result).keys())
    return f"honest hosts were suspended: {', '.join(hit)}" if hit else ""


SILENCE: tuple[Scenario, ...] = (
    Scenario(name="one wrong average and silence", finding="B6", play=silence(FIVE, reducers=(1,), silent=(1,))),
    Scenario(name="a silent friend of a reducer", finding="", play=silence(SEVEN, reducers=(1,), silent=(4,))),
    Scenario(name="complaints without a cause", finding="", play=complaining(SEVEN, liars=(2, 4, 6))),
)
