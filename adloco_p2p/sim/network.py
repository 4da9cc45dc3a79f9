"""The network of a simulated world: it loses, doubles, delays and reorders messages, and cuts ways between peers.

A message arrives after its delay and the time that its bytes take on the sender's uplink. `is_open` answers for streams
(averages, fetched states) what a message finds out by getting lost.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.messages import MAX_MESSAGE_BYTES, Entries, Proposal, Supply
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.event_queue import EventQueue
from adloco_p2p.sim.faults import Faults

LARGE_KINDS = (Entries, Supply, Proposal)
"""Messages whose bytes are always counted: they grow with the swarm."""
CALM_DELAY_SECONDS = 0.3
"""The longest delay once the faults have ended."""


class OversizedMessage(AssertionError):
    """A peer sends more bytes than any peer accepts."""


class Network:
    """`send` hands a message over once per copy that arrives; `deliver(receiver, sender, message)` takes it there."""

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
        """Sent by each peer; the bytes of all messages only where they are measured."""
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
        """A new machine: on which side of a partition it is, and which of its links carry nothing."""
        self._sides[peer] = len(self._sides) % 2
        for other in others:
            for link in ((peer, other), (other, peer)):
                if self._random.random() < self._faults.one_way_links:
                    self._cut_links[link] = None

    def place(self, sides: Mapping[PeerId, int]) -> None:
        """Other sides of the partition than those that machines got in turn."""
        self._sides.update(sides)

    def cut(self, sender: PeerId, receiver: PeerId) -> None:
        """The way from one to the other carries nothing until the faults end."""
        self._cut_links[sender, receiver] = None

    def is_open(self, sender: PeerId, receiver: PeerId) -> bool:
        if self.are_faults_over:
            return True
        start = self._faults.partition_at
        is_parted = start is not None and start <= self._queue.now < start + self._faults.partition_seconds
        is_apart = is_parted and self._sides.get(sender, 0) != self._sides.get(receiver, 0)
        return not is_apart and (sender, receiver) not in self._cut_links

    def are_connected(self, one: PeerId, other: PeerId) -> bool:
        """A stream needs both directions."""
        return self.is_open(one, other) and self.is_open(other, one)

    def delay_seconds(self) -> float:
        shortest, longest = self._faults.delay_seconds
        return self._random.uniform(shortest, min(longest, CALM_DELAY_SECONDS) if self.are_faults_over else longest)

    def send(self, sender: PeerId, receivers: Sequence[PeerId], message: object, *, is_counted: bool = True) -> None:
        """Raises OversizedMessage. `is_counted`: it enters `messages` and `bytes`."""
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
    """In canonical bytes. An entry of the ledger is sent many times and measured once."""
    if not isinstance(message, Entries):
        return canonical.size(message)
    commas = max(0, len(message.entries) - 1)
    return canonical.size(Entries(entries=())) + sum(map(canonical.size_once, message.entries)) + commas
