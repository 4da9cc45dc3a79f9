"""The speed of the whole swarm, round by round. Pure.

Samples and training time of every peer come from the signed reports in the ledger. The ledger has no clock, so the duration of
a round is the one that a node of this machine has seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adloco_p2p.core.ledger.contributions import CreditedSamples
from adloco_p2p.views import progress
from adloco_p2p.views.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSpeed:
    round: int
    tokens_per_second: float
    """Tokens of all peers."""
    computing: float
    """The part of the round in which its hosts computed, their mean, in [0, 1]."""


@dataclass(slots=True)
class _Work:
    samples: int = 0
    seconds: float = 0.0


def throughput(own: Status, credited: Sequence[CreditedSamples], *, sequence_length: int) -> list[RoundSpeed]:
    """Return the speeds by round, for the rounds that `own`, the node of this machine, has timed; without a ledger, for that
    node alone."""
    work = _by_round((each.round, each.peer, each.samples, each.item.train_seconds) for each in credited) or _by_round(
        (each.round, own.peer, each.samples, each.seconds.get("training", 0.0)) for each in own.results.values()
    )
    return [
        RoundSpeed(
            round=round_,
            tokens_per_second=sum(peer.samples for peer in hosts.values()) * sequence_length / seconds,
            computing=sum(min(1.0, peer.seconds / seconds) for peer in hosts.values()) / len(hosts),
        )
        for round_, seconds in progress.round_durations(own)
        if (hosts := work.get(round_))
    ]


def _by_round(rows: Iterable[tuple[int, str, int, float]]) -> Mapping[int, Mapping[str, _Work]]:
    """Return samples and training time of all instances, for the peers that did any work, by round."""
    found: dict[int, dict[str, _Work]] = {}
    for round_, peer, samples, seconds in rows:
        if samples:
            work = found.setdefault(round_, {}).setdefault(peer, _Work())
            work.samples += samples
            work.seconds += seconds
    return found
