"""Reducers that lie and show nobody the proof, and complaints without a cause: scenarios of the simulated world."""

from dataclasses import replace
from functools import partial

from adloco_p2p.core.model.complaints import Complaint
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.suspension import suspended
from adloco_p2p.sim.adversary import Liar
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.world import small_rules
from benchmarks.adversary.arena import Result, Setting
from benchmarks.adversary.scenario import Play, Scenario, played

FIVE = Setting(rounds=14)
SEVEN = Setting(peers=7, rounds=16, rules=replace(small_rules(7, 16), instances=InstanceRules(count=1, start="same")))
"""A setting with one instance, so that three liars of seven are a minority of its hosts."""
ROUNDS_TO_A_SUSPENSION = 12
"""About every second round some host draws a part of a reducer that lies about all parts. Complaints take three rounds to a
plan; then all look at that reducer, and after two averages more, and three rounds, it is suspended."""
VICTIM = 0
"""The number of the founder that liars complain about. It has the lowest name, so it is first wherever it is a host."""


def one_wrong_average(host: PeerId, average: object) -> object:
    """Return the wrong sum that a lying reducer returns to everybody."""
    del host
    return hashed("wrong", average)


def silence(setting: Setting, *, reducer: int, silent: int) -> Play:
    """Return an attack in which the reducer lies, and the silent member, which may be the same, shows nobody what it sent to
    it."""
    lies = {reducer: one_wrong_average}
    liars = {number: Liar(withholds=number == silent, hands_out=lies.get(number)) for number in (reducer, silent)}
    return played(setting, liars, partial(_ends_soon, silent=silent), suspensions_of_the_honest)


def complains(report: Report) -> Report:
    """Complain in every report about one honest host, which shows everything."""
    said = Complaint(round=report.round, contributor=VICTIM, reducer=VICTIM)
    return replace(report, instances=tuple(replace(item, complaint=said) for item in report.instances))


def has_complaints(result: Result) -> str:
    carried = any(item.complaints for entry in result.arena.entries.values() for item in entry.plan.instances)
    return "" if carried else "no plan had a complaint"


def _suspensions(result: Result) -> dict[PeerId, int]:
    """Return the suspended peers, with the round of the first plan that suspends each."""
    found: dict[PeerId, int] = {}
    for round, entry in sorted(result.arena.entries.items()):
        for item in entry.plan.instances:
            for peer in suspended(item.hosts, round):
                assert all(share.samples == 0 for share in item.hosts if share.peer == peer)
                found.setdefault(peer, round)
    return found


def _ends_soon(result: Result, silent: int) -> str:
    is_late = _suspensions(result).get(name_of(silent), ROUNDS_TO_A_SUSPENSION + 1) > ROUNDS_TO_A_SUSPENSION
    return f"founder {silent} was not suspended by round {ROUNDS_TO_A_SUSPENSION}" if is_late else ""


def suspensions_of_the_honest(result: Result) -> str:
    honest = {machine.peer for machine in result.arena.honest()}
    hit = sorted(honest & _suspensions(result).keys())
    return f"honest hosts were suspended: {', '.join(hit)}" if hit else ""


SILENCE: tuple[Scenario, ...] = (
    Scenario("one wrong average and silence", silence(FIVE, reducer=1, silent=1), "B6"),
    Scenario("a silent friend of a reducer", silence(SEVEN, reducer=1, silent=4)),
    Scenario(
        "complaints without a cause",
        played(SEVEN, dict.fromkeys((2, 4, 6), Liar(alters=complains)), suspensions_of_the_honest, has_complaints),
    ),
)
