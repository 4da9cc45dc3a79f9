"""Reads a run from the working directory of one of its peers: its settings, its ledger and its events, as objects.

The directory is never written to, so its peer may be at work. Nothing here imports torch.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.ledger.contributions import Contribution, CreditedSamples, leaderboard
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.model.telemetry import Log, Stamped
from adloco_p2p.core.model.words import plural
from adloco_p2p.errors import ConfigError
from adloco_p2p.runtime.adapters.plan_rule import genesis_of
from adloco_p2p.runtime.adapters.run_history import contributions_alone, ledger_events_of, ledger_of, with_newest_rounds
from adloco_p2p.storage.event_log import read_events
from adloco_p2p.storage.workdir import EVENTS, meant_workdir, read_run
from adloco_p2p.views.ledger_events import LedgerEvents
from adloco_p2p.views.status_fold import replay

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRound:
    """The result of one instance in one round, over all its hosts."""

    round: int
    instance: InstanceId
    loss: float | None
    """Training loss: mean over the credited samples, nats per predicted token."""
    heldout_loss: float | None
    """Held-out loss after the round; None where it was not measured."""
    requested_batch: int
    effective_batch: int
    """Global batch of an inner step, in samples."""
    samples: int
    contributors: tuple[PeerId, ...]
    """Peers whose pseudo-gradients are in the committed average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRound:
    """The report of one peer about one instance in one round."""

    round: int
    instance: InstanceId
    peer: PeerId
    loss: float | None
    heldout_loss: float | None
    samples: int
    """The credited samples: at most what the plan gave that peer."""
    inner_steps: int
    batch_samples: int
    train_seconds: float


class Run:
    """The run in the working directory of one peer.

    With a ledger, which every run on the network has, `rounds`, `reports` and `contributors` are those of all peers, from
    signed reports. The newest rounds, whose reports no plan holds yet, come from this peer's events. Without a ledger they are
    those of this peer alone. Files are read once, when they are first needed; a new `Run` sees what is newer.
    """

    def __init__(self, directory: str | Path) -> None:
        """`directory`: a peer's, or that of a swarm on this machine, whose first peer is then read. Raises ConfigError (E204)
        where no run lies there, StorageError where it cannot be read."""
        path = Path(directory)
        self.path = meant_workdir(path) or path
        found = read_run(self.path)
        if found is None:
            raise ConfigError(f"{directory}: holds no run; name the working directory of a peer", code="E204")
        self.config: RunConfig = found

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}): {self.config.name}, {plural(len({row.round for row in self.rounds}), 'round')}"

    @property
    def digest(self) -> str:
        """The run's id."""
        return self.config.digest

    @cached_property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """The ledger after the first plan, in order, each entry with its plan, votes and signed reports. Entries are read, not
        checked: `adloco-peer ledger verify` recomputes every decision. Raises StorageError."""
        return tuple(ledger_of(self.path, self.config))

    @property
    def plans(self) -> tuple[RoundPlan, ...]:
        """The agreed plans, beginning with the first one; without a ledger the first one only."""
        return (genesis_of(self.config), *(entry.plan for entry in self.entries))

    @cached_property
    def stamped_events(self) -> tuple[Stamped, ...]:
        """The events of this peer, each with its time; see `core/model/telemetry.py`. Raises StorageError."""
        return tuple(read_events(self.path / EVENTS))

    @property
    def events(self) -> tuple[Log, ...]:
        """The events of this peer without their times."""
        return tuple(stamped.event for stamped in self.stamped_events)

    @cached_property
    def rounds(self) -> tuple[InstanceRound, ...]:
        """Finished rounds in order, one row per instance."""
        status = with_newest_rounds(self._ledger.status, self.stamped_events)
        return tuple(
            InstanceRound(
                round=result.round,
                instance=InstanceId(result.instance),
                loss=result.loss,
                heldout_loss=result.heldout_loss,
                requested_batch=result.requested_batch,
                effective_batch=result.effective_batch,
                samples=result.samples,
                contributors=tuple(PeerId(peer) for peer in result.hosts),
            )
            for _, result in sorted(status.results.items())
        )

    @cached_property
    def reports(self) -> tuple[PeerRound, ...]:
        """The reports of all peers, by round; empty without a ledger. The ledger holds no reports of the last two rounds."""
        return tuple(_peer_round(credit) for credit in self._ledger.credited)

    @cached_property
    def contributors(self) -> tuple[Contribution, ...]:
        """One row per peer, the largest contribution first."""
        if self.entries:
            return tuple(leaderboard(self._ledger.credited, sequence_length=self.config.tokens_per_sample))
        return tuple(contributions_alone(replay(self.stamped_events)))

    @property
    def losses(self) -> Mapping[InstanceId, Sequence[tuple[int, float | None, float | None]]]:
        """The training and held-out losses of each instance: (round, training loss, held-out loss), in order."""
        found: dict[InstanceId, list[tuple[int, float | None, float | None]]] = {}
        for row in self.rounds:
            found.setdefault(row.instance, []).append((row.round, row.loss, row.heldout_loss))
        return found

    @cached_property
    def _ledger(self) -> LedgerEvents:
        ledger = ledger_events_of(self.config)
        ledger.follow(self.entries)
        return ledger


def _peer_round(credit: CreditedSamples) -> PeerRound:
    item = credit.item
    return PeerRound(
        round=credit.round,
        instance=item.instance,
        peer=credit.peer,
        loss=item.loss,
        heldout_loss=item.heldout_loss,
        samples=credit.samples,
        inner_steps=item.inner_steps,
        batch_samples=item.batch_samples,
        train_seconds=item.train_seconds,
    )


def frame(rows: Iterable[Any]) -> "pandas.DataFrame":
    """Return rows of one kind (`Run.rounds`, `Run.reports`, `Run.contributors`, `Run.events` of one class) as a data frame with
    a column per field. Needs pandas (the extra `frames`)."""
    import pandas

    taken = [{item.name: getattr(row, item.name) for item in dataclasses.fields(row)} for row in rows]
    return pandas.DataFrame(taken)
