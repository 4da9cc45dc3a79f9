"""Computes the time of a run from its counts, for a stated machine and link. Pure arithmetic; nothing sleeps."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine on which an inner step on `b` samples takes `step_seconds + b * sample_seconds`."""

    step_seconds: float
    sample_seconds: float

    def inner_step(self, batch: int, *, speed: float = 1.0) -> float:
        return (self.step_seconds + batch * self.sample_seconds) / speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link of every peer, with the same rate in each direction."""

    bits_per_second: float
    latency_seconds: float
    """The latency one way."""
    efficiency: float
    """Goodput of the averaging over the rate of the link, as measured on emulated links (docs/measured.md)."""

    def averaging(self, payload_bytes: float, num_hosts: int) -> float:
        """Return the seconds of one outer averaging of an encoded vector of `payload_bytes`: scatter, gather, and the commit's
        message."""
        if num_hosts < 2:
            return 0.0
        return self.transfer(transferred(payload_bytes, num_hosts)) + 3 * self.latency_seconds

    def transfer(self, size: float) -> float:
        """Return the seconds of so many bytes in one direction, without the latency."""
        return size * 8 / (self.bits_per_second * self.efficiency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Islands:
    """Groups of hosts with a fast link each, behind an uplink that the hosts of an island share."""

    hosts: int
    """The hosts of each island: places 0 to hosts - 1 are the first island, and so on."""
    uplink: Link
    sums_inside: bool = False
    """Not in the product: an island sums its own contributions first, so that an average moves one vector over its uplink."""

    def island_of(self, place: int) -> int:
        return place // self.hosts

    def crossing(self, payload_bytes: float, places: Sequence[int]) -> float:
        """Return the bytes of an all-reduce among the hosts at these places that leave the busiest island. All hosts reduce
        equal parts: each part of `payload_bytes / n` goes from every contributor to its reducer, and back."""
        counts = Counter(self.island_of(place) for place in places).values()
        if len(counts) < 2:
            return 0.0
        if self.sums_inside:
            return transferred(payload_bytes, len(counts))
        return max(2 * count * (len(places) - count) / len(places) * payload_bytes for count in counts)


def transferred(payload_bytes: float, num_hosts: int) -> float:
    """Return the bytes per host and direction of an all-reduce: 2 (n - 1) / n times the vector (docs/mathematics.md, 11.2)."""
    return 2 * (num_hosts - 1) / num_hosts * payload_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A machine, a link and the size of what is averaged: the emulation to which a column of times belongs."""

    name: str
    machine: Machine
    link: Link
    """The link of every host; where there are islands, inside them."""
    payload_bytes: float
    """Bytes of the encoded vector that is averaged."""
    state_bytes: float
    """Bytes that a peer fetches that does not hold an instance: outer parameters and momentum."""
    islands: Islands | None = None

    def averaging(self, payload_bytes: float, places: Sequence[int]) -> float:
        """Return the seconds of one average of `payload_bytes` encoded bytes among the hosts at these places, by its slowest
        transfer."""
        inside = self.link.averaging(payload_bytes, len(places))
        if self.islands is None or not (crossing := self.islands.crossing(payload_bytes, places)):
            return inside
        uplink = self.islands.uplink
        return max(inside, uplink.transfer(crossing) + 3 * uplink.latency_seconds)


def round_seconds(work: Sequence[tuple[int, int, int]], profile: Profile) -> float:
    """Return the seconds of one round on equal peers. `work`: for each instance that a peer hosts (largest batch of a host,
    steps, hosts).

    Instances take turns on the device. With several, one is averaged while the next computes, so that a round lasts as long as
    the busier of device and link, but no less than one instance's own computing and averaging in turn.
    """
    computing = [steps * profile.machine.inner_step(batch) for batch, steps, _ in work]
    averaging = [profile.link.averaging(profile.payload_bytes, hosts) for _, _, hosts in work]
    longest = max(c + a for c, a in zip(computing, averaging, strict=True))
    return max(sum(computing), sum(averaging), longest)


MEASURED_MACHINE = Machine(step_seconds=1.8e-3, sample_seconds=0.27e-3)
"""This model on one core of the machine of docs/measured.md, in processor time, by `python -m benchmarks.method step`."""
HOME_LINK = Link(bits_per_second=100e6, latency_seconds=0.05, efficiency=0.8)
"""100 Mbit/s and 50 ms, with the best efficiency of averaging 12M parameters there: 64 MB in 6.54 s less three delays. By the
newest row of docs/measured.md (6.99 s) it is 0.75."""
LARGE_MACHINE = Machine(step_seconds=0.02, sample_seconds=0.03)
"""An assumption, not a measurement: a 150M-parameter Llama, 1,024 tokens a sample (0.9 TFLOP), at 30 TFLOP/s."""

SMALL = Profile(name="measured model", machine=MEASURED_MACHINE, link=HOME_LINK, payload_bytes=4 * 20864, state_bytes=8 * 20864)
LARGE = Profile(name="150M, float16", machine=LARGE_MACHINE, link=HOME_LINK, payload_bytes=2 * 150e6, state_bytes=8 * 150e6)
SLOW = Profile(
    name="150M, float16, slow machines",
    machine=Machine(step_seconds=0.05, sample_seconds=0.3),
    link=Link(bits_per_second=1e9, latency_seconds=0.01, efficiency=0.64),
    payload_bytes=2 * 150e6,
    state_bytes=8 * 150e6,
)
"""An assumption: a tenth of that arithmetic and 1 Gbit/s, so that computing, not the link, decides, for tests of unequal
speeds."""
STEADY = Profile(
    name="150M, int8, half a second a step",
    machine=Machine(step_seconds=0.5, sample_seconds=0.0),
    link=HOME_LINK,
    payload_bytes=1.02 * 150e6,
    state_bytes=8 * 150e6,
)
"""The assumptions of `benchmarks/utilisation.py`."""


def _islands(hosts: int) -> tuple[Profile, ...]:
    """Return the profiles of islands. Assumed: 150M parameters, 5 s a step (64 rows of 1,024 tokens at 12 TFLOP/s), 1 Gbit/s
    inside an island and 20 Mbit/s for all of its hosts to the outside. States are kept in six bytes a parameter (`outer.state:
    mixed`)."""
    base = Profile(
        name=f"islands of {hosts}, int8",
        machine=Machine(step_seconds=5.0, sample_seconds=0.0),
        link=Link(bits_per_second=1e9, latency_seconds=0.001, efficiency=0.8),
        payload_bytes=1.02 * 150e6,
        state_bytes=6 * 150e6,
        islands=Islands(hosts=hosts, uplink=Link(bits_per_second=20e6, latency_seconds=0.05, efficiency=0.8)),
    )
    assert base.islands is not None
    return (
        base,
        replace(base, name=f"islands of {hosts}, float32", payload_bytes=4 * 150e6),
        replace(base, name=f"islands of {hosts}, int8, merges too", state_bytes=base.payload_bytes),
        replace(base, name=f"islands of {hosts}, int8, sums inside", islands=replace(base.islands, sums_inside=True)),
        replace(base, name=f"islands of {hosts}, int8, no border", islands=None),
    )


ISLANDS = tuple(profile for hosts in (2, 4) for profile in _islands(hosts))
PROFILES = {profile.name: profile for profile in (SMALL, LARGE, SLOW, STEADY, *ISLANDS)}
