"""A run as its ledger has it, for the views: of all peers, where the events of a node are of one."""

from collections.abc import Iterable, Sequence

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.ledger.ledger import chain
from adloco_p2p.core.model.telemetry import Round, Stamped, Started
from adloco_p2p.runtime.adapters.plan_rule import genesis_of
from adloco_p2p.views.ledger_events import LedgerEvents
from adloco_p2p.views.status import Status, apply


def ledger_events_of(run: RunConfig) -> LedgerEvents:
    """The events of the run's ledger, of which none is written yet."""
    started = Started(
        run=run.digest,
        name=run.name,
        peer="",
        mode=run.mode,
        rounds=run.work.rounds,
        samples=run.work.samples,
        inner_steps=run.work.inner_steps,
    )
    return LedgerEvents(genesis_of(run), started=started, sequence_length=run.data.sequence_length)


def with_newest_rounds(status: Status, own_events: Iterable[Stamped]) -> Status:
    """The status of a ledger with the rounds that only a node has: the reports of the last ones are not in the ledger yet."""
    known = status.results
    for stamped in own_events:
        event = stamped.event
        if isinstance(event, Round) and (event.round, event.instance) not in known:
            status = apply(status, stamped)
    return status


def status_of_all(run: RunConfig, records: Sequence[object], own_events: Sequence[Stamped]) -> Status:
    """The run of the journal's records, and of the events of the node that wrote them."""
    from_ledger = ledger_events_of(run)
    from_ledger.follow(chain(records, genesis_of(run)))
    return with_newest_rounds(from_ledger.status, own_events)
