"""The history of a run as its views and programs read it: folded from a ledger, or from the events of one node."""

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.ledger.contributions import Contribution
from adloco_p2p.core.model.telemetry import Started
from adloco_p2p.core.model.types import PeerId
from adloco_p2p.runtime.adapters.plan_rule import genesis_of
from adloco_p2p.views.ledger_events import LedgerEvents
from adloco_p2p.views.status import Status


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


def contributions_alone(own: Status) -> list[Contribution]:
    """Without a ledger nothing is signed: the rounds of one node, by its own events."""
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
