"""Looks at contributions with hosts that train nothing, and with assessors that lie about others: scenarios of the simulated
world."""

from collections.abc import Mapping
from dataclasses import replace

from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.assessment import idle_hosts
from adloco_p2p.sim.adversary import Liar
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.world import small_rules
from benchmarks.adversary.arena import Result, Setting
from benchmarks.adversary.scenario import Check, Play, Scenario, played

ROUNDS = 64
EIGHT = Setting(
    peers=8,
    rounds=ROUNDS,
    rules=replace(small_rules(8, ROUNDS), instances=InstanceRules(count=1, start="same"), assess_every=1),
)
"""Each host is looked at eight times on average, so all but one in some hundred seeds show each host twice."""
IDLER, ACCUSER = 5, 2


def _reduced(result: Result) -> frozenset[PeerId]:
    """Return the hosts that a plan gave fewer rows as idle."""
    found: set[PeerId] = set()
    for entry in result.arena.entries.values():
        for item in entry.plan.instances:
            found |= idle_hosts({share.peer: share.scores for share in item.hosts if share.samples})
    return frozenset(found)


def loses_rows(*numbers: int) -> Check:
    """Return a check that these founders, and no others, get fewer rows."""
    expected = frozenset(map(name_of, numbers))

    def check(result: Result) -> str:
        found = _reduced(result)
        unharmed, harmed = sorted(expected - found), sorted(found - expected)
        problems = [f"idle, and has all of its rows: {', '.join(unharmed)}"] if unharmed else []
        problems += [f"honest, and lost rows: {', '.join(harmed)}"] if harmed else []
        return "; ".join(problems)

    return check


def scores(tenths: int) -> Liar:
    """Return a liar that trains, and reports this score for all that it looks at."""

    def alters(report: Report) -> Report:
        items = (
            item if item.assessment is None else replace(item, assessment=replace(item.assessment, score=tenths))
            for item in report.instances
        )
        return replace(report, instances=tuple(items))

    return Liar(alters=alters)


def looked_at(liars: Mapping[int, Liar], *idle: int) -> Play:
    return played(EIGHT, liars, loses_rows(*idle))


LOOKS: tuple[Scenario, ...] = (
    Scenario("a host that trains nothing", looked_at({IDLER: Liar(is_idle=True)}, IDLER)),
    Scenario("a host that shows nothing", looked_at({IDLER: Liar(withholds=True)}, IDLER)),
    Scenario("an assessor that lies", looked_at({ACCUSER: scores(0)})),
    Scenario(
        "a friend of a host that trains nothing",
        looked_at({IDLER: Liar(is_idle=True), ACCUSER: scores(500)}, IDLER),
    ),
)
