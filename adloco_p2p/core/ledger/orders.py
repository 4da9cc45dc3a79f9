"""How the orders of signers change the course of a run.

An order takes effect with the round that it names, or as soon as possible if that round is over.
"""

from collections.abc import Iterable
from dataclasses import replace

from adloco_p2p.core.model.course import MAX_CHANGES, Change, Course, Settings, over
from adloco_p2p.core.model.ledger_entry import Decree, Statement
from adloco_p2p.core.model.scalars import LARGEST_COUNT


def course_after(course: Course, statements: Iterable[Decree], *, round: int) -> Course:
    """Return the course after these statements, which are in order, and which the plan of `round` carries. A pause begins, and
    a run ends, after that round at the earliest, because a round is planned as the last one before it begins."""
    for statement in statements:
        if isinstance(statement, Statement):
            course = _with(course, statement, round)
    return replace(course, changes=_due_as_one(course.changes, round))


def _with(course: Course, statement: Statement, round: int) -> Course:
    match statement.action:
        case "stop":
            return replace(course, last_round=max(statement.round, round))
        case "pause":
            return replace(course, paused_from=max(statement.round, round + 1))
        case "resume":
            return replace(course, paused_from=None, last_round=None)
        case "change" if statement.settings is not None and len(course.changes) < MAX_CHANGES:
            first = max(statement.round, round)
            change = Change(from_round=first, settings=_not_over(statement.settings, first))
            return replace(course, changes=tuple(sorted((*course.changes, change), key=lambda known: known.from_round)))
    return course


def _not_over(settings: Settings, round: int) -> Settings:
    """Return the settings with `rounds` so large that the round from which they hold is still trained. The number stays within
    the readable range, because no node could start again from a ledger with a plan that it cannot decode."""
    rounds = settings.rounds
    return settings if rounds is None else replace(settings, rounds=max(rounds, min(round + 1, LARGEST_COUNT)))


def _due_as_one(changes: tuple[Change, ...], round: int) -> tuple[Change, ...]:
    due = [change for change in changes if change.from_round <= round]
    if len(due) < 2:
        return changes
    settings = Settings()
    for change in due:
        settings = over(settings, change.settings)
    return (Change(from_round=due[-1].from_round, settings=settings), *changes[len(due) :])
