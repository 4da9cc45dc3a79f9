"""A row of the table: an attack, what was sent, what happened, and whether the run withstood it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from benchmarks.adversary.arena import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    sent: str
    happened: str
    has_passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`play` gets the seed."""

    name: str
    finding: str
    """Of the review; empty for a variant that is not in it."""
    play: Callable[[int], Outcome]
    gap: str = ""
    """Why the run is known not to withstand it; empty where it does."""

    def verdict(self, outcome: Outcome) -> Literal["pass", "open", "FAIL", "shut"]:
        """open: it succeeds, as is known. shut: it is known to succeed, and did not, so its mark as a gap is wrong by now."""
        if self.gap:
            return "shut" if outcome.has_passed else "open"
        return "pass" if outcome.has_passed else "FAIL"


def judged(result: Result, *problems: str, sent: str) -> Outcome:
    """The outcome of a fight; `problems` are what else went wrong, empty where nothing did."""
    wrong = "; ".join(filter(None, problems))
    happened = f"{wrong}; {result}" if wrong else str(result)
    return Outcome(sent=sent, happened=happened, has_passed=not result.problem and not wrong)


def named(scenarios: Iterable[Scenario], names: Iterable[str]) -> list[Scenario]:
    """Those whose name or finding is among `names`; all where there are none. Raises KeyError for a name that is unknown."""
    known = list(scenarios)
    asked = list(names)
    for name in asked:
        if not any(name in (scenario.name, scenario.finding) for scenario in known):
            raise KeyError(name)
    return [item for item in known if not asked or item.name in asked or item.finding in asked]
