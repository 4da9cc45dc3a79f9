"""The faults of a simulated world as plain data, and the random everyday faults of a seed."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """All disturbances of a world, which end at `faults_end_at`. Times are seconds of virtual time."""

    loss: float = 0.0
    """The part of the messages that never arrive."""
    duplication: float = 0.0
    """The part of the messages that arrive twice."""
    delay_seconds: tuple[float, float] = (0.02, 0.1)
    """The shortest and the longest delay of a message; a wide range reorders messages."""
    crash_chance: float = 0.0
    """The chance that a peer dies after one of its effects, so that the rest of them never happens."""
    crash_targets: float = 0.0
    """The chance that a peer dies right after an effect that writes to the disk or reveals what was written."""
    never_back: float = 0.0
    """The part of the crashed machines that do not restart."""
    pause_chance: float = 0.0
    """The chance per peer and second to stand still for up to `pause_seconds`."""
    pause_seconds: float = 20.0
    churn: float = 0.0
    """The number of joiners, and of leavers, per peer and minute."""
    aside: float = 0.0
    """The number of peers, per peer and minute, that are paused, follow the run, and come back after a while."""
    partition_at: float | None = None
    partition_seconds: float = 0.0
    one_way_links: float = 0.0
    """The part of the directed links that carry nothing."""
    liars: float = 0.0
    """The part of the peers that report work which they did not do, in others' names too."""
    vanish_at: float | None = None
    vanish_share: float = 0.0
    """The part of the peers that dies at `vanish_at` and never comes back."""
    skew_seconds: float = 300.0
    """The largest difference between the clocks of two machines, which also run up to 0.1 % fast or slow."""
    crashes: int = 0
    """The number of machines that die at a persistence point, one after the other, and start again."""
    joins: int = 0
    """The number of machines that join while the faults last."""
    leaves: int = 0
    """The number of machines that drain, or leave at once, while the faults last."""
    pauses: int = 0
    """The number of peers whose users pause and resume them."""
    cut_links: int = 0
    """The number of random directed links that carry nothing while the faults last."""
    uplink_bytes_per_second: float = 2_000_000.0
    """The uplink of every machine."""
    slow_peers: float = 0.0
    """The part of the peers that need three times as long for a round."""
    faults_end_at: float = 30.0

    @property
    def is_gentle(self) -> bool:
        """Whether there is no reason to exclude any peer, so that two histories must not arise."""
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
    """Return the faults of one everyday world of whole peers. Each has a join, a departure, a crash at a persistence point, and
    a partition or cut links; some have the other kinds."""

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
