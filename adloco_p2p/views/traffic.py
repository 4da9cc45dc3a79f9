"""Bytes, samples and tokens of this peer, and the state that it downloads. Pure."""

from dataclasses import dataclass, replace

from adloco_p2p.core.model.once import once
from adloco_p2p.core.model.telemetry import Bandwidth
from adloco_p2p.views import units
from adloco_p2p.views.round_results import RoundResults
from adloco_p2p.views.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """This peer's totals over all credited rounds. Bytes are those of all traffic where it was counted, otherwise of averaging
    alone."""

    samples: int
    tokens: int
    bytes_sent: int
    bytes_received: int
    training_seconds: float


def totals(status: Status) -> Totals:
    traffic = traffic_by_kind(status).values()
    return replace(
        _of_averages(status.results),
        bytes_sent=sum(sent for sent, _ in traffic),
        bytes_received=sum(received for _, received in traffic),
    )


@once
def _of_averages(results: RoundResults) -> Totals:
    """Return the totals with the bytes of committed averages alone."""
    every = results.values()
    return Totals(
        samples=sum(result.samples for result in every),
        tokens=sum(result.tokens for result in every),
        bytes_sent=sum(result.bytes_sent for result in every),
        bytes_received=sum(result.bytes_received for result in every),
        training_seconds=sum(result.seconds.get("training", 0.0) for result in every),
    )


def traffic_by_kind(status: Status) -> dict[str, tuple[int, int]]:
    """Return bytes sent and received by kind; where nothing was counted, those of this peer's committed averages."""
    averages = _of_averages(status.results)
    return dict(status.traffic) or {"averaging": (averages.bytes_sent, averages.bytes_received)}


def bytes_per_token(status: Status) -> float | None:
    """Return the bytes that this peer sent per token that it trained."""
    sums = totals(status)
    return sums.bytes_sent / sums.tokens if sums.tokens else None


def bandwidth(status: Status) -> Bandwidth:
    """Return the bytes of this peer, rates and caps: present measurements, or else those of earlier rounds. No rates after its
    end."""
    rounds = totals(status)
    found = status.bandwidth or Bandwidth(sent_bytes=rounds.bytes_sent, received_bytes=rounds.bytes_received)
    if status.state not in ("stopped", "finished"):
        return found
    return replace(found, up_bytes_per_second=None, down_bytes_per_second=None)


def download_words(status: Status) -> str:
    """Return `57.0 MB of 90.0 MB, 3.10 MB/s, 10.6 s left`; empty where no state is on its way."""
    downloads = status.downloads.values()
    received, total = (sum(getattr(each, name) for each in downloads) for name in ("received_bytes", "total_bytes"))
    if not total:
        return ""
    rate = sum(each.bytes_per_second or 0.0 for each in downloads)
    left = f", {units.size(rate)}/s, {units.duration((total - received) / rate)} left" if rate > 0 else ""
    return f"{units.size(received)} of {units.size(total)}{left}"


def download_fraction(status: Status) -> float | None:
    """Return the received part of the states on their way; None where none is on its way."""
    total = sum(each.total_bytes for each in status.downloads.values())
    return sum(each.received_bytes for each in status.downloads.values()) / total if total else None
