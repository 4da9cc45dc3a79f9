"""A row of the table: an attack, what was sent, what happened, and whether the run withstood it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.adversary import Liar, Outgoing, Sent
from adloco_p2p.sim.machine import Machine
from benchmarks.adversary.arena import Arena, Result, Setting, fight
from benchmarks.adversary.strangers import Strangers


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    sent: str
    happened: str
    has_passed: bool


Play = Callable[[int], Outcome]
"""Plays the attack with a seed."""
Check = Callable[[Result], str]
"""Returns what else went wrong; empty where nothing did."""
LIAR = 1
"""The number of the founder that lies, where one does. It votes, proposes and reduces in full."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    play: Play
    finding: str = ""
    """The finding of the review; empty for a variant that is not in it."""
    gap: str = ""
    """Why the run is known not to withstand it; empty where it does."""

    def verdict(self, outcome: Outcome) -> Literal["pass", "open", "FAIL", "shut"]:
        """Return the verdict. open: the attack succeeds, as is known. shut: an attack that is known to succeed did not, so its
        mark as a gap is out of date."""
        if self.gap:
            return "shut" if outcome.has_passed else "open"
        return "pass" if outcome.has_passed else "FAIL"


def played(
    setting: Setting,
    liars: Callable[[int], Mapping[int, Liar]] | Mapping[int, Liar],
    *checks: Check,
    strangers: Callable[[], Strangers] | None = None,
    prepare: Callable[[Arena], None] = lambda _: None,
    is_idle_wrong: bool = False,
) -> Play:
    """Return an attack by members and strangers, which are made anew for each seed if they are given as functions.
    `is_idle_wrong`: the attack counts as withstood only if it sent something that the protocol does not have."""

    def play(seed: int) -> Outcome:
        counted = Counter[str]()
        members = liars(seed) if callable(liars) else liars
        attackers = strangers() if strangers is not None else None
        counting = {number: _counting(liar, counted) for number, liar in members.items()}
        result = fight(seed, setting, liars=counting, adversary=attackers, prepare=prepare)
        told = [f"{attackers.num_sent} messages of strangers"] if attackers is not None and attackers.num_sent else []
        told += [f"{number} {what}" for what, number in counted.most_common(3) if number]
        problem = "nothing was sent" if is_idle_wrong and not told else ""
        return judged(result, *(check(result) for check in checks), problem, sent=", ".join(told))

    return play


def _counting(liar: Liar, counted: Counter[str]) -> Liar:
    """Return the same liar, and count what it does otherwise than an honest member."""

    def sends(machine: Machine, peer: PeerId, message: object) -> Sent:
        sent = liar.sends(machine, peer, message)
        counted.update(type(other).__name__ for _, other in sent if other is not message)
        delays = [delay for delay, other in sent if other is message]
        counted["held back" if not delays else "late"] += not delays or max(delays) > 0
        return sent

    def alters(report: Report) -> Report:
        assert liar.alters is not None
        changed = liar.alters(report)
        counted["altered reports"] += changed != report
        return changed

    def hands_out(host: PeerId, average: object) -> object:
        assert liar.hands_out is not None
        counted["averages"] += 1
        return liar.hands_out(host, average)

    return replace(liar, sends=sends, alters=liar.alters and alters, hands_out=liar.hands_out and hands_out)


def by_member(sends: Outgoing, *checks: Check, setting: Setting | None = None) -> Play:
    return played(setting or Setting(), {LIAR: Liar(sends=sends)}, *checks, is_idle_wrong=True)


def by_reports(alters: Callable[[Report], Report], *checks: Check, setting: Setting | None = None) -> Play:
    return played(setting or Setting(), {LIAR: Liar(alters=alters)}, *checks, is_idle_wrong=True)


def rounds_where(result: Result, holds: Callable[[LedgerEntry], object]) -> list[int]:
    """Return the rounds of the plans that honest peers followed and for which this holds."""
    return [round for round, entry in sorted(result.arena.entries.items()) if holds(entry)]


def let_in(result: Result) -> set[PeerId]:
    """Return the identities of strangers that ever had a seat."""
    return {peer for entry in result.arena.entries.values() for peer in roster_of(entry.plan) if peer.startswith("x")}


def judged(result: Result, *problems: str, sent: str) -> Outcome:
    """Return the outcome of a fight; `problems` say what else went wrong, and are empty where nothing did."""
    wrong = "; ".join(filter(None, problems))
    happened = f"{wrong}; {result}" if wrong else str(result)
    return Outcome(sent=sent, happened=happened, has_passed=not result.problem and not wrong)


def named(scenarios: Iterable[Scenario], names: Iterable[str]) -> list[Scenario]:
    """Return the scenarios whose name or finding is among `names`; all where `names` is empty. Raises KeyError for an unknown
    name."""
    known = list(scenarios)
    asked = list(names)
    for name in asked:
        if not any(name in (scenario.name, scenario.finding) for scenario in known):
            raise KeyError(name)
    return [item for item in known if not asked or item.name in asked or item.finding in asked]
