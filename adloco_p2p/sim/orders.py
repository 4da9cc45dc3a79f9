"""The effect of signers' statements on a run, implemented a second time for the checkers, from `docs/consensus.md`."""

from dataclasses import replace

from adloco_p2p.core.model.course import Change, Course, Settings
from adloco_p2p.core.model.ledger_entry import Statement, Value
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import PeerId


def signers_and_course(parent: RoundPlan, value: Value) -> tuple[tuple[PeerId, ...], Course]:
    """Return the signers and the course of the value's plan. Raises ValueError if the value is not allowed after the parent."""
    signers, course, now = set(parent.signers), parent.course, value.round
    changes = list(course.changes)
    for statement in value.statements:
        if not isinstance(statement, Statement):
            continue
        if statement.signer not in signers:
            raise ValueError(f"{statement.signer} is no signer")
        if statement.action == "add_signer":
            signers |= {statement.subject}
        if statement.action == "remove_signer":
            signers -= {statement.subject}
        if statement.action == "pause":
            course = replace(course, paused_from=statement.round if statement.round > now else now + 1)
        if statement.action == "stop":
            course = replace(course, last_round=statement.round if statement.round > now else now)
        if statement.action == "resume":
            course = replace(course, paused_from=None, last_round=None)
        if statement.action == "change":
            assert statement.settings is not None
            begins = statement.round if statement.round > now else now
            rounds = None if statement.settings.rounds is None else max(statement.settings.rounds, begins + 1)
            changes.append(Change(from_round=begins, settings=replace(statement.settings, rounds=rounds)))
    if parent.signers and not signers:
        raise ValueError("no signer is left")
    if course.paused_from is not None and now >= course.paused_from:
        raise ValueError("the run is paused")
    changes = sorted(changes, key=lambda change: change.from_round)
    while len(changes) > 1 and changes[1].from_round <= now:
        old, new = changes[0].settings, changes[1].settings
        ends = old if new.rounds is None and new.samples is None else new
        factor = new.learning_rate_factor or old.learning_rate_factor
        settings = Settings(rounds=ends.rounds, samples=ends.samples, learning_rate_factor=factor)
        changes[:2] = [Change(from_round=changes[1].from_round, settings=settings)]
    return tuple(sorted(signers)), replace(course, changes=tuple(changes))
