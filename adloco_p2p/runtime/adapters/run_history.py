"""The history of a run for views and programs: computed from a ledger, or from the events of one node."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.ledger.contributions import Contribution
from adloco_p2p.core.ledger.ledger import chain
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import HeldOut, Round, Stamped, Started, shared
from adloco_p2p.runtime.adapters.network_journal import journal_records
from adloco_p2p.runtime.adapters.plan_rule import genesis_of
from adloco_p2p.storage.workdir import JOURNAL
from adloco_p2p.views.ledger_events import LedgerEvents
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import apply


def ledger_events_of(run: RunConfig) -> LedgerEvents:
    """Return the fold of the run's ledger into events, with no entries yet."""
    started = Started(
        run=run.digest,
        name=run.name,
        peer="",
        mode=run.mode,
        rounds=run.work.rounds,
        samples=run.work.samples,
        inner_steps=run.work.inner_steps,
        data_sets=tuple(run.readers),
    )
    return LedgerEvents(genesis_of(run), started=started, sequence_length=run.tokens_per_sample)


def ledger_of(workdir: Path, run: RunConfig) -> list[LedgerEntry]:
    """Read the entries after the first plan, in order, from the journal in a working directory; none without a journal. They
    are not checked. Raises StorageError."""
    journal = workdir / JOURNAL
    return chain(journal_records(journal), genesis_of(run)) if journal.exists() else []


def contributions_alone(own: Status) -> list[Contribution]:
    """Return the contribution of one node by its own events, for a run without a ledger, where nothing is signed."""
    results = own.results.values()
    if not results:
        return []
    return [
        Contribution(
            peer=PeerId(own.peer),
            samples=sum(result.samples for result in results),
            tokens=sum(result.tokens for result in results),
            num_rounds=len({result.round for result in results}),
            last_round=max(result.round for result in results),
        )
    ]


def with_newest_rounds(status: Status, own_events: Iterable[Stamped]) -> Status:
    """Add to the status of a ledger what only a node has: the last rounds, whose reports are in no plan yet, and evaluations
    whose report came too late for its plan."""
    known = status.results
    for stamped in own_events:
        event = stamped.event
        if isinstance(event, HeldOut) or (isinstance(event, Round) and (event.round, event.instance) not in known):
            status = apply(status, stamped)
        elif isinstance(event, Round) and event.heldout_loss is not None:
            own = HeldOut(peer=PeerId(status.peer), **shared(event, HeldOut))
            status = apply(status, replace(stamped, event=own))
    return status


def status_of_all(run: RunConfig, entries: Sequence[LedgerEntry], own_events: Sequence[Stamped]) -> Status:
    """Return the status of a run from the ledger's entries and the events of a node that has them."""
    from_ledger = ledger_events_of(run)
    from_ledger.follow(entries)
    return with_newest_rounds(from_ledger.status, own_events)
