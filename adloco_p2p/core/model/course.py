"""What signers ordered of a live run: when it pauses and ends, and settings that change from a round on. Pure.

Every plan carries the course of its run, so every peer applies an order with the same plan, and any holder of the
ledger can recompute it. An order takes effect with the round that it names, or as soon as it can where that round is over.
"""

from collections.abc import Iterable
from dataclasses import replace

from adloco_p2p.core.model.ledger_entry import Decree, Statement
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.types import MAX_CHANGES, Change, Course, Settings
from adloco_p2p.core.model.words import plural


def course_after(course: Course, statements: Iterable[Decree], *, round: int) -> Course:
    """With these statements, in order, which the plan of `round` carries. A pause begins after that round and a run ends after
    it, at the earliest: peers know of a round that it is the last one before it begins."""
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
    """The round from which the settings hold is trained."""
    return settings if settings.rounds is None else replace(settings, rounds=max(settings.rounds, round + 1))


def _due_as_one(changes: tuple[Change, ...], round: int) -> tuple[Change, ...]:
    due = [change for change in changes if change.from_round <= round]
    if len(due) < 2:
        return changes
    settings = Settings()
    for change in due:
        settings = _over(settings, change.settings)
    return (Change(from_round=due[-1].from_round, settings=settings), *changes[len(due) :])


def _over(old: Settings, new: Settings) -> Settings:
    """The new settings, and the old ones that they do not change. A run has one end."""
    has_end = new.rounds is not None or new.samples is not None
    return Settings(
        rounds=new.rounds if has_end else old.rounds,
        samples=new.samples if has_end else old.samples,
        learning_rate_factor=old.learning_rate_factor if new.learning_rate_factor is None else new.learning_rate_factor,
    )


def settings_at(course: Course, round: int) -> Settings:
    """Those that hold in the round."""
    settings = Settings()
    for change in course.changes:
        if change.from_round <= round:
            settings = _over(settings, change.settings)
    return settings


def work_at(work: WorkRules, course: Course, round: int) -> WorkRules:
    """The rules of the configuration, as far as signers did not change them by the round."""
    settings = settings_at(course, round)
    if settings.rounds is None and settings.samples is None:
        return work
    return replace(work, rounds=settings.rounds, samples=settings.samples if settings.rounds is None else None)


def is_paused_at(course: Course, round: int) -> bool:
    """Whether there is no plan of this round before a signer resumes the run."""
    return course.paused_from is not None and round >= course.paused_from


def in_words(course: Course, round: int) -> str:
    """What holds in the round or comes later; empty where signers ordered nothing."""
    words = []
    if course.paused_from is not None:
        words.append(f"a signer pauses the run before round {course.paused_from}")
    if course.last_round is not None:
        words.append(f"a signer ends the run after round {course.last_round}")
    for change in course.changes:
        when = "by a signer's order" if change.from_round <= round else f"from round {change.from_round} on"
        words.append(f"{_settings_in_words(change.settings)} {when}")
    return "; ".join(words)


def _settings_in_words(settings: Settings) -> str:
    words = []
    if settings.rounds is not None:
        words.append(f"{plural(settings.rounds, 'round')} in all")
    if settings.samples is not None:
        words.append(f"{settings.samples:,} samples in all")
    if settings.learning_rate_factor is not None:
        words.append(f"learning rate times {settings.learning_rate_factor:g}")
    return " and ".join(words)
