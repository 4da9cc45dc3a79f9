"""Newcomers late in a run: they leave the signatures of old reports to the electors; one member spoils what it serves."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.agreement import ledger_sync
from adloco_p2p.core.agreement.ledger_sync import LedgerExchange
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.messages import Entries, Heartbeat
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.world import World

SEEDS = range(6)
COMES_AT = 40.0


def spoilt(entry: LedgerEntry) -> LedgerEntry:
    """In even rounds a vote, in others the signature of a report."""
    votes, reports = entry.certificate.votes, entry.reports
    if entry.plan.round % 2 or not reports:
        votes = (*votes[:-1], replace(votes[-1], signature=votes[-1].signature[::-1]))
        return replace(entry, certificate=replace(entry.certificate, votes=votes))
    return replace(entry, reports=(replace(reports[0], signature=reports[0].signature[::-1]), *reports[1:]))


def spoil(world: World, liar: PeerId) -> None:
    """What the liar sends names an end far ahead, and every entry is another one."""
    send = world.network.send

    def lying(sender: PeerId, receivers: Sequence[PeerId], message: object, *, is_counted: bool = True) -> None:
        if sender == liar and isinstance(message, Heartbeat):
            message = replace(message, head=replace(message.head, round=message.head.round + 1000))
        elif sender == liar and isinstance(message, Entries):
            message = Entries(entries=tuple(map(spoilt, message.entries)))
        send(sender, receivers, message, is_counted=is_counted)

    world.network.send = lying  # type: ignore[method-assign]


def test_newcomers_take_up_what_electors_voted_for_and_end_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs here are short and entries small: one is old as soon as a peer names a later one, and they come one by one."""
    monkeypatch.setattr(ledger_sync, "ROUNDS_VERIFIED_WHOLE", 1)
    monkeypatch.setattr(ledger_sync, "ENTRIES_BYTES", 1)
    is_old, num_old = LedgerExchange._is_old, 0

    def counted(self: LedgerExchange, entry: LedgerEntry) -> bool:
        nonlocal num_old
        found = is_old(self, entry)
        num_old += found
        return found

    monkeypatch.setattr(LedgerExchange, "_is_old", counted)
    for seed in SEEDS:
        faults = Faults(loss=0.1, duplication=0.1, crashes=2, leaves=1, cut_links=2, faults_end_at=COMES_AT + 4.0)
        world = World(seed, peers=5, rounds=16, faults=faults, round_seconds=2.0)
        spoil(world, sorted(world.machines)[seed % 5])
        world.queue.at(COMES_AT, world._join)
        world.run()  # its checkers hold, every ledger verifies, and all end with one
    assert num_old > 4 * len(SEEDS), "too few to show anything"
