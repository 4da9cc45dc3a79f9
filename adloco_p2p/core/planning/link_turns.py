"""How often a host takes part in averages, by what its link costs the others. Pure.

An average ends when the slowest link has carried its part. A host whose link would lengthen the rounds by more than
`work.link_tolerance` is in every second or fourth average only: between its turns it trains like all others, takes the averages
that they make, and keeps what it learned for its next pseudo-gradient, which spans these rounds. Where that is still too
often, it is benched: a member without an instance until its link is tried again.

The yardstick is the exchange of the fastest hosts that are more than half of the full members, so an honest host is among them
as long as those are the majority: hosts with equal links all stay, whatever others claim. Of two hosts the one that joined
first is the yardstick. All slow hosts have their turns in the same rounds, so the others wait for them together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from adloco_p2p.core.model.types import PeerId, RosterEntry, has_turn

TURNS = (2, 4)
"""A slow link takes part in every so many averages, ..."""
LEAST_SECONDS = 2.0
"""A link that takes no longer than this beyond the others is not slow: busy machines alone take as long now and then."""
LEAST_MEASURED = 2
"""An uplink counts once it was measured so often: the first average of a process is slow."""
BENCHED_ROUNDS = 32
"""... or is tried once in so many rounds: links change, and one that carries nothing is not measured."""
FETCH_ROUNDS = 4
"""So many rounds before it is tried, a benched host is given the instance again, to fetch its state."""
LEAST_FRACTION = 0.5
"""A host that computes less of the time is benched, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Of one host."""

    every: int = 1
    """It takes part in every so many averages."""
    fraction: float = 1.0
    """Of a round in which it can compute: it has the others' average later than they do, and its share of the work is cut so
    that all end together."""

    def is_hosting(self, round: int) -> bool:
        """Whether it has an instance in this round."""
        return self.every < BENCHED_ROUNDS or any(has_turn(self.every, round + ahead) for ahead in range(FETCH_ROUNDS + 1))

    def is_training(self, round: int) -> bool:
        """Whether it has work in this round."""
        return self.every < BENCHED_ROUNDS or has_turn(self.every, round)


EVERY_AVERAGE = Turns()
BENCHED = Turns(every=BENCHED_ROUNDS)


def link_turns(
    entries: Sequence[RosterEntry],
    *,
    vector_bytes: int,
    compute_seconds: float,
    tolerance: float | None,
) -> dict[PeerId, Turns]:
    """Of the hosts whose link is too slow for every average.

    `entries`: of the members that train; `vector_bytes`: of a pseudo-gradient as it travels; `compute_seconds`: of a round; 0
    where unknown, and then nobody is too slow. `tolerance`: by which part of a round its link may lengthen the others' rounds
    on average; None: by any.
    """
    if tolerance is None or not vector_bytes or compute_seconds <= 0.0:
        return {}
    uplinks = {entry.peer: _uplink(entry) for entry in entries if len(entry.uplinks) >= LEAST_MEASURED and _uplink(entry) >= 1}
    fastest = _yardstick(entries, uplinks)
    if not fastest:
        return {}
    exchange = exchange_seconds(vector_bytes, [uplinks.get(peer, 0.0) for peer in fastest])
    allowed = max(LEAST_SECONDS, tolerance * (compute_seconds + exchange))
    found: dict[PeerId, Turns] = {}
    for entry in entries:
        if entry.peer in fastest or entry.peer not in uplinks:
            continue
        up = vector_bytes / uplinks[entry.peer]
        extra = up - exchange
        if extra <= allowed:
            continue
        fraction = 1 - vector_bytes / _downlink(entry, uplinks[entry.peer]) / compute_seconds
        often = [every for every in TURNS if fraction >= LEAST_FRACTION and extra <= every * allowed]
        found[entry.peer] = Turns(every=often[0], fraction=fraction) if often else BENCHED
    return found


def _uplink(entry: RosterEntry) -> float:
    """The fastest one measured of late, in bytes per second: a busy machine makes a link seem slower, never faster."""
    return max(entry.uplinks)


def _downlink(entry: RosterEntry, uplink: float) -> float:
    """Bytes per second: as measured, or as the uplink."""
    return entry.capacity.download_bytes_per_second or uplink


def _yardstick(entries: Sequence[RosterEntry], uplinks: Mapping[PeerId, float]) -> list[PeerId]:
    """The fastest hosts that are more than half of the full members, of all where none is full; empty where too few uplinks are
    known."""
    full = [entry for entry in entries if not entry.probation] or list(entries)
    if len(full) == 2:
        return [min(full, key=lambda entry: (entry.joined_round, entry.peer)).peer]
    known = sorted((entry.peer for entry in full if entry.peer in uplinks), key=lambda peer: (-uplinks[peer], peer))
    count = len(full) // 2 + 1
    return known[:count] if len(known) >= count else []


def exchange_seconds(vector_bytes: int, uplinks: Sequence[float]) -> float:
    """The shortest average among hosts with these uplinks in bytes per second: each sends its vector, and all together
    2 (n - 1) of them. Nothing to send for one host."""
    if len(uplinks) < 2:
        return 0.0
    return vector_bytes * max(1 / min(uplinks), 2 * (len(uplinks) - 1) / fsum(uplinks))


def describe_turns(turns: Mapping[PeerId, Turns], entries: Iterable[RosterEntry], *, vector_bytes: int) -> str:
    """In words, whose link keeps it out of most averages and why; empty where all take part in all."""
    uplinks = {entry.peer: _uplink(entry) for entry in entries if entry.peer in turns}
    return "; ".join(
        f"{peer} {_WORDS[turns[peer].every]} (its link needs {vector_bytes / uplink:.3g} s at {uplink / 1e6:.3g} MB/s)"
        for peer, uplink in sorted(uplinks.items())
    )


_WORDS = {
    2: "is in every 2nd average",
    4: "is in every 4th average",
    BENCHED_ROUNDS: f"is benched, and tried every {BENCHED_ROUNDS} rounds",
}
