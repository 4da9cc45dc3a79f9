"""The course of a live run: its signers' orders to pause or end it, and to change settings from a round on. Pure.

Every plan carries the course, so all peers apply an order with the same plan, and any holder of the ledger can recompute it.
`core/ledger/orders.py` derives the course from the orders.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Gt, Le, MaxLen

from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.scalars import Count, PositiveCount
from adloco_p2p.core.model.words import plural

MAX_CHANGES = 16
"""Most changes of settings in a plan: one for all settings that hold now, and one for each later round with a change."""
MAX_FACTOR = 100.0
"""Greatest factor by which signers may multiply the learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a run that its signers may change while it trains; None leaves a setting as it is."""

    rounds: PositiveCount | None = None
    """The run ends after this many rounds, even if it was to end by samples before."""
    samples: PositiveCount | None = None
    """The run ends once its plans have given out this many samples, even if it was to end by rounds before."""
    learning_rate_factor: Annotated[float, Gt(0), Le(MAX_FACTOR)] | None = None
    """Factor on the learning rate of the configuration's schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Settings that hold from the plan of a round on."""

    from_round: Count
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The orders of signers for a run beyond its configuration; see `core/ledger/orders.py`."""

    paused_from: Count | None = None
    """The run pauses before this round: no plan of it or of a later round is made until a signer resumes the run."""
    last_round: Count | None = None
    """The run ends after this round at the latest."""
    changes: Annotated[tuple[Change, ...], MaxLen(MAX_CHANGES)] = ()
    """Changes sorted by round; the first one already holds if its round is not after that of the plan."""


AS_CONFIGURED = Course()
"""The course of a run whose signers have ordered nothing."""


def over(old: Settings, new: Settings) -> Settings:
    """Return `new` on top of `old`: a setting that `new` leaves out keeps its old value. A run ends by rounds or by samples,
    not both."""
    has_end = new.rounds is not None or new.samples is not None
    return Settings(
        rounds=new.rounds if has_end else old.rounds,
        samples=new.samples if has_end else old.samples,
        learning_rate_factor=old.learning_rate_factor if new.learning_rate_factor is None else new.learning_rate_factor,
    )


def settings_at(course: Course, round: int) -> Settings:
    """Return the ordered settings that hold in the round."""
    settings = Settings()
    for change in course.changes:
        if change.from_round <= round:
            settings = over(settings, change.settings)
    return settings


def work_at(work: WorkRules, course: Course, round: int) -> WorkRules:
    """Return the rules of the configuration with the changes that hold in the round."""
    settings = settings_at(course, round)
    if settings.rounds is None and settings.samples is None:
        return work
    return replace(work, rounds=settings.rounds, samples=settings.samples if settings.rounds is None else None)


def until(last_round: int, work: WorkRules) -> str:
    """Say in words how long a condition holds that ends with `last_round`."""
    is_to_the_end = work.rounds is not None and last_round >= work.rounds - 1
    return "until the run ends" if is_to_the_end else f"until round {last_round}"


def is_paused_at(course: Course, round: int) -> bool:
    """Return whether the plan of this round waits for a signer to resume the run."""
    return course.paused_from is not None and round >= course.paused_from


def pending(course: Course, round: int) -> Course:
    """Return the course without the changes that hold in the round already."""
    return replace(course, changes=tuple(change for change in course.changes if change.from_round > round))


def in_words(course: Course, round: int) -> str:
    """Describe what holds in the round or later; empty if signers ordered nothing."""
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
