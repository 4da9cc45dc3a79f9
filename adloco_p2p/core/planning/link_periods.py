"""How often a host takes part in averages, by what its link costs the others. Pure.

An average ends when the slowest link has carried its part. A host whose link would lengthen the rounds by more than
`work.link_tolerance` takes part in every second or fourth average only. In between it trains like all others, takes the
averages that they make, and keeps what it learned for its next pseudo-gradient, which spans these rounds. If that is still too
often, it waits on the bench: a member without an instance until its link is tried again.

The yardstick is the exchange of the fastest hosts that are more than half of the full members; an honest host is among them as
long as honest members are the majority. So hosts with equal links all stay, whatever others claim. Of two hosts the one that
joined first is the yardstick. All slow hosts are due in the same rounds, so the others wait for them together.

A host that alone reduces sends its vector to no host, so its uplink is not measured: it belongs to the yardstick, and counts as
fast as the rest of it. With one full member, or two of which the first is not measured, the yardstick is that of all hosts;
newcomers that are half of all others can then put other newcomers aside, but no full member.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum

from adloco_p2p.core.model.instance_plan import is_due
from adloco_p2p.core.model.quorum import LEAST_MEASURED
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import PeerId

PERIODS = (2, 4)
"""Periods of slow links: the host takes part in every second, or every fourth, average."""
LEAST_SECONDS = 2.0
"""A link that takes at most this much longer than the others is not slow: busy machines alone take as long now and then."""
TRIAL_ROUNDS = 32
"""A host on the bench is tried once in this many rounds, because links change, and a link that carries nothing is not
measured."""
FETCH_ROUNDS = 4
"""Rounds before its trial at which a host on the bench gets the instance again, to fetch its state."""
LEAST_FRACTION = 0.5
"""A host that can compute during less than this fraction of a round waits on the bench, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPeriod:
    """How often one host takes part in averages, and how much it can compute."""

    every: int = 1
    """The host takes part in one in this many averages."""
    fraction: float = 1.0
    """Fraction of a round in which the host can compute. It gets the others' average later than they do, and its share of the
    work is cut so that all end together."""

    def is_hosting(self, round: int) -> bool:
        """Return whether the host may have an instance in this round."""
        return self.every < TRIAL_ROUNDS or any(is_due(self.every, round + ahead) for ahead in range(FETCH_ROUNDS + 1))

    def is_training(self, round: int) -> bool:
        """Return whether the host may have work in this round."""
        return self.every < TRIAL_ROUNDS or is_due(self.every, round)


EVERY_AVERAGE = LinkPeriod()
BENCHED = LinkPeriod(every=TRIAL_ROUNDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPeriods:
    """The link periods of the members that train."""

    slow: Mapping[PeerId, LinkPeriod] = field(default_factory=dict)
    """Members whose link is too slow for every average."""
    reason: str = ""
    """The slow members in words; empty if there are none."""

    def of(self, peer: PeerId) -> LinkPeriod:
        return self.slow.get(peer, EVERY_AVERAGE)

    def benched(self, round: int) -> frozenset[PeerId]:
        """Return the members that are given no instance in this round."""
        return frozenset(peer for peer, period in self.slow.items() if not period.is_hosting(round))

    def among(self, trainers: Collection[PeerId]) -> "LinkPeriods":
        """Return the periods that apply to an instance with these trainers: if all are slow, none waits for another."""
        return self if any(peer not in self.slow for peer in trainers) else ALL_IN_EVERY_AVERAGE


ALL_IN_EVERY_AVERAGE = LinkPeriods()


def link_periods(
    entries: Sequence[RosterEntry], *, vector_bytes: int, compute_seconds: float, tolerance: float | None
) -> LinkPeriods:
    """Return the periods of the members that train, whose seats are `entries`.

    `vector_bytes` is the size of a pseudo-gradient on the wire, `compute_seconds` the computing time of a round; if one is 0
    (unknown), no host is too slow. `tolerance` is the part of a round by which a host's link may lengthen the others' rounds on
    average; None for any part.
    """
    if tolerance is None or not vector_bytes or compute_seconds <= 0.0:
        return ALL_IN_EVERY_AVERAGE
    uplinks = {entry.peer: _uplink(entry) for entry in entries if len(entry.uplinks) >= LEAST_MEASURED and _uplink(entry) >= 1}
    fastest = _yardstick(entries, uplinks)
    rates = [uplinks[peer] for peer in fastest if peer in uplinks]
    if not rates:
        return ALL_IN_EVERY_AVERAGE
    equals = [min(rates)] * (max(len(fastest), 2) - len(rates))  # a single host exchanges with its like
    exchange = exchange_seconds(vector_bytes, [*rates, *equals])
    allowed = max(LEAST_SECONDS, tolerance * (compute_seconds + exchange))
    slow: dict[PeerId, LinkPeriod] = {}
    for entry in entries:
        extra = vector_bytes / uplinks[entry.peer] - exchange if entry.peer in uplinks else 0.0
        if entry.peer in fastest or extra <= allowed:
            continue
        fraction = 1 - vector_bytes / _downlink(entry, uplinks[entry.peer]) / compute_seconds
        often = [every for every in PERIODS if fraction >= LEAST_FRACTION and extra <= every * allowed]
        slow[entry.peer] = LinkPeriod(every=often[0], fraction=fraction) if often else BENCHED
    return LinkPeriods(slow=slow, reason=_in_words(slow, uplinks, vector_bytes))


def _uplink(entry: RosterEntry) -> float:
    """Return the fastest uplink measured lately, in bytes per second: a busy machine makes a link seem slower, never faster."""
    return max(entry.uplinks)


def _downlink(entry: RosterEntry, uplink: float) -> float:
    """Return the downlink in bytes per second: as measured, or equal to the uplink."""
    return entry.capacity.download_bytes_per_second or uplink


def _yardstick(entries: Sequence[RosterEntry], uplinks: Mapping[PeerId, float]) -> list[PeerId]:
    """Return the hosts that serve as yardstick; empty if too few uplinks are known.

    Of three or more full members these are the fastest, more than half; one that is not measured counts as fast. Of two full
    members it is the first to join, if it is measured. Otherwise these are the one or two full members, measured or not, and
    the fastest newcomers, together more than half of all hosts.
    """
    full = sorted([e for e in entries if not e.probation] or entries, key=lambda entry: (entry.joined_round, entry.peer))
    if len(full) == 2 and full[0].peer in uplinks:
        return [full[0].peer]
    are_few = len(full) <= 2
    unmeasured = [entry.peer for entry in full if entry.peer not in uplinks]
    sure = [entry.peer for entry in full] if are_few else unmeasured if len(unmeasured) == 1 else []
    judged = entries if are_few else full
    others = [entry.peer for entry in judged if entry.peer in uplinks and entry.peer not in sure]
    count = max(0, len(judged) // 2 + 1 - len(sure))
    fastest = sorted(others, key=lambda peer: (-uplinks[peer], peer))[:count]
    return [*sure, *fastest] if len(fastest) == count else []


def exchange_seconds(vector_bytes: int, uplinks: Sequence[float]) -> float:
    """Return the shortest duration of an average among hosts with these uplinks in bytes per second: each sends its vector, and
    all together send 2 (n - 1) vectors. A single host has nothing to send."""
    if len(uplinks) < 2:
        return 0.0
    return vector_bytes * max(1 / min(uplinks), 2 * (len(uplinks) - 1) / fsum(uplinks))


_WORDS = {
    2: "is in every 2nd average",
    4: "is in every 4th average",
    TRIAL_ROUNDS: f"is benched, and tried every {TRIAL_ROUNDS} rounds",
}


def is_benched_by(reason: str, peer: str) -> bool:
    """Return whether a plan with this reason benches the peer for its link; a plan has no field for that."""
    return f"{peer} {_WORDS[TRIAL_ROUNDS]}" in reason


def _in_words(slow: Mapping[PeerId, LinkPeriod], uplinks: Mapping[PeerId, float], vector_bytes: int) -> str:
    return "; ".join(
        f"{peer} {_WORDS[period.every]} (its link needs {vector_bytes / uplinks[peer]:.3g} s at {uplinks[peer] / 1e6:.3g} MB/s)"
        for peer, period in sorted(slow.items())
    )
