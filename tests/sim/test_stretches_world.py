"""Peers that take up old entries by later votes: newcomers late in a run, with stretches as short as simulated runs need."""

import pytest

from adloco_p2p.core.agreement.consensus import Consensus
from adloco_p2p.core.agreement.ledger_sync import LedgerExchange
from adloco_p2p.core.ledger import fork_choice, vouching
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.world import World

SEEDS = range(6)
COMES_AT = 40.0


def test_newcomers_late_in_a_run_take_up_what_a_majority_vouches_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every peer that serves entries seems to have a longer ledger than it has, so what is collected waits for heartbeats."""
    for module in (fork_choice, vouching):
        monkeypatch.setattr(module, "STRETCH", 3)
    monkeypatch.setattr(LedgerExchange, "_is_far", lambda *_: True)
    take_up, taken = Consensus.take_up, list[int]()

    def counted(self: Consensus, entries: list[LedgerEntry], now: float) -> None:
        taken.append(len(entries))
        take_up(self, entries, now)

    monkeypatch.setattr(Consensus, "take_up", counted)
    for seed in SEEDS:
        faults = Faults(loss=0.1, duplication=0.1, crashes=2, leaves=1, cut_links=2, faults_end_at=COMES_AT + 4.0)
        world = World(seed, peers=5, rounds=16, faults=faults, round_seconds=2.0)
        world.queue.at(COMES_AT, world._join)
        world.run()  # its checkers hold, and all end with one ledger
    assert len(taken) > len(SEEDS), "too few to show anything"
