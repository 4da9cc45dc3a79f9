"""The network of a simulated world: it loses, duplicates, delays and reorders messages, and cuts links between peers.

A message arrives after its delay and the time that its bytes take on the sender's uplink. Messages on a cut link get lost;
streams (averages, fetched states) ask `is_open` first.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.messages import MAX_MESSAGE_BYTES, Entries, Proposal, Supply
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.event_queue import EventQueue
from adloco_p2p.sim.faults import Faults

LARGE_KINDS = (Entries, Supply, Proposal)
"""The messages whose bytes are always counted, because they grow with the swarm."""
CALM_DELAY_SECONDS = 0.3
"""The longest delay once the faults have ended."""


class OversizedMessage(AssertionError):
    """A message of more bytes than any peer accepts."""


class Network:
    """The network of one world. `send` calls `deliver(receiver, sender, message)` once for each copy that arrives."""

    def __init__(
        self,
        queue: EventQueue,
        *,
        random: Random,
        faults: Faults,
        deliver: Callable[[PeerId, PeerId, object], None],
        measures_bytes: bool = False,
    ) -> None:
        self.messages: dict[PeerId, int] = {}
        self.bytes: dict[PeerId, int] = {}
        """The bytes that each peer sent, of large messages only unless all are measured."""
        self._queue = queue
        self._random = random
        self._faults = faults
        self._deliver = deliver
        self._measures_bytes = measures_bytes
        self._sides: dict[PeerId, int] = {}
        self._cut_links: dict[tuple[PeerId, PeerId], None] = {}

    @property
    def are_faults_over(self) -> bool:
        return self._queue.now >= self._faults.faults_end_at

    def add(self, peer: PeerId, others: Sequence[PeerId]) -> None:
        """Add a machine: give it a side of the partition, and draw its links that carry nothing."""
        self._sides[peer] = len(self._sides) % 2
        for other in others:
            for link in ((peer, other), (other, peer)):
                if self._random.random() < self._faults.one_way_links:
                    self._cut_links[link] = None

    def place(self, sides: Mapping[PeerId, int]) -> None:
        """Set the sides of machines in the partition, instead of those that they got in turn."""
        self._sides.update(sides)

    def cut(self, sender: PeerId, receiver: PeerId) -> None:
        """Cut the link from one peer to the other until it is mended, or the faults end."""
        self._cut_links[sender, receiver] = None

    def mend(self, sender: PeerId, receiver: PeerId) -> None:
        """Mend the cut link from one peer to the other."""
        del self._cut_links[sender, receiver]

    def is_open(self, sender: PeerId, receiver: PeerId) -> bool:
        if self.are_faults_over:
            return True
        start = self._faults.partition_at
        is_parted = start is not None and start <= self._queue.now < start + self._faults.partition_seconds
        is_apart = is_parted and self._sides.get(sender, 0) != self._sides.get(receiver, 0)
        return not is_apart and (sender, receiver) not in self._cut_links

    def are_connected(self, one: PeerId, other: PeerId) -> bool:
        """Return whether both directions are open, as a stream needs them."""
        return self.is_open(one, other) and self.is_open(other, one)

    def delay_seconds(self) -> float:
        shortest, longest = self._faults.delay_seconds
        return self._random.uniform(shortest, min(longest, CALM_DELAY_SECONDS) if self.are_faults_over else longest)

    def send(self, sender: PeerId, receivers: Sequence[PeerId], message: object, *, is_counted: bool = True) -> None:
        """Send a message, counted in `messages` and `bytes` if `is_counted`. Raises OversizedMessage."""
        seconds = 0.0
        if is_counted:
            self.messages[sender] = self.messages.get(sender, 0) + len(receivers)
        if receivers and (self._measures_bytes or isinstance(message, LARGE_KINDS)):
            size = _size(message)
            seconds = size / self._faults.uplink_bytes_per_second
            if is_counted:
                self.bytes[sender] = self.bytes.get(sender, 0) + len(receivers) * size
            if size > MAX_MESSAGE_BYTES:
                raise OversizedMessage(f"{sender} sends a {type(message).__name__} of {size} bytes, which no peer accepts")
        for receiver in receivers:
            copies = 1
            if not self.are_faults_over:
                if self._random.random() < self._faults.loss or not self.is_open(sender, receiver):
                    continue
                copies += self._random.random() < self._faults.duplication
            for _ in range(copies):
                self._queue.after(seconds + self.delay_seconds(), self._deliver, receiver, sender, message)


def _size(message: object) -> int:
    """Return the canonical bytes of a message. A ledger entry is sent many times and measured once."""
    if not isinstance(message, Entries):
        return canonical.size(message)
    commas = max(0, len(message.entries) - 1)
    return canonical.size(Entries(entries=())) + sum(map(canonical.size_once, message.entries)) + commas
