"""Faults of a simulated world: plain data, and the small random scenarios of a seed."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Everything that a world does to its peers until `faults_end_at`; from then on there are no faults. Seconds of virtual
    time."""

    loss: float = 0.0
    """Part of the messages that never arrive."""
    duplication: float = 0.0
    """Part of the messages that arrive twice."""
    delay_seconds: tuple[float, float] = (0.02, 0.1)
    """Shortest and longest way of a message; a wide range reorders them."""
    crash_chance: float = 0.0
    """Chance that a peer dies after one of its effects, so that the rest of them never happens."""
    crash_targets: float = 0.0
    """The same, right after an effect that writes to the disk or reveals what was written."""
    never_back: float = 0.0
    """Part of the crashed that do not restart."""
    pause_chance: float = 0.0
    """Chance per peer and second to stand still for up to `pause_seconds`."""
    pause_seconds: float = 20.0
    churn: float = 0.0
    """Joiners, and as many leavers, per peer and minute."""
    aside: float = 0.0
    """Peers that leave but follow, and come back after a while, per peer and minute."""
    partition_at: float | None = None
    partition_seconds: float = 0.0
    one_way_links: float = 0.0
    """Part of the directed links that carry nothing."""
    liars: float = 0.0
    """Part of the peers that report what they did not do, in others' names too."""
    vanish_at: float | None = None
    vanish_share: float = 0.0
    """At this moment this part of the peers dies and never comes back."""
    skew_seconds: float = 300.0
    """Clocks of two machines differ by up to so much, and run up to 0.1 % fast or slow."""
    crashes: int = 0
    """Machines that die at a persistence point, one after the other, and start again."""
    joins: int = 0
    """Machines that come while the faults last."""
    leaves: int = 0
    """Machines that drain, or leave at once, while the faults last."""
    pauses: int = 0
    """Peers whose users pause them and resume them."""
    cut_links: int = 0
    """Directed links, drawn at random, that carry nothing while the faults last."""
    uplink_bytes_per_second: float = 2_000_000.0
    """Of every machine."""
    slow_peers: float = 0.0
    """Part of the peers that need three times as long for a round."""
    faults_end_at: float = 30.0

    @property
    def is_gentle(self) -> bool:
        """No reason to exclude any peer: two histories must not arise."""
        return not (
            self.loss > 0.1
            or self.crash_chance
            or self.crash_targets
            or self.pause_chance
            or self.churn
            or self.aside
            or self.partition_seconds
            or self.one_way_links
            or self.vanish_share
            or self.crashes
            or self.joins
            or self.leaves
            or self.pauses
            or self.cut_links
        )


def everyday_faults(random: Random) -> Faults:
    """The faults of one everyday world of whole peers. Each has a join, a departure, a crash at a persistence point, and a
    partition or cut links; the other kinds are present in some."""

    def sometimes(chance: float, value: float) -> float:
        return value if random.random() < chance else 0.0

    is_parted = random.random() < 0.5
    return Faults(
        loss=random.choice((0.0, 0.02, 0.1, 0.2)),
        duplication=random.choice((0.0, 0.1)),
        delay_seconds=random.choice(((0.01, 0.05), (0.02, 0.3), (0.05, 1.0))),
        crash_chance=sometimes(0.2, 0.001),
        crash_targets=sometimes(0.2, 0.01),
        never_back=random.choice((0.0, 0.2)),
        pause_chance=sometimes(0.2, 0.01),
        pause_seconds=12.0,
        partition_at=random.uniform(1.0, 6.0) if is_parted else None,
        partition_seconds=random.uniform(3.0, 14.0) if is_parted else 0.0,
        one_way_links=sometimes(0.1, 0.1),
        cut_links=0 if is_parted else random.randint(1, 4),
        liars=sometimes(0.2, 0.2),
        slow_peers=sometimes(0.3, 0.3),
        crashes=random.randint(1, 3),
        joins=random.randint(1, 2),
        leaves=1,
        pauses=random.choice((0, 0, 1)),
        uplink_bytes_per_second=random.choice((500_000.0, 2_000_000.0, 20_000_000.0)),
        faults_end_at=15.0,
    )
