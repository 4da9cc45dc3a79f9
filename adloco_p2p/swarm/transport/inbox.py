"""The inbox: the messages that wait for the core, bounded and shared fairly among their senders.

Every sender has a queue and a quota of its own. Members are served before strangers, and within each of the two groups the
senders take turns, one message each. A sender that floods fills only its own quota.
"""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from adloco_p2p.core.model.scalars import PeerId

MAX_MESSAGES = 1024
MAX_BYTES = 64 << 20
"""The most bytes of all waiting messages."""
MAX_STRANGER_MESSAGES = 256
MAX_STRANGER_BYTES = 8 << 20
"""The most bytes of strangers' messages among them."""
MEMBER_MESSAGES = 64
MEMBER_BYTES = 4 << 20
STRANGER_MESSAGES = 16
STRANGER_BYTES = 2 << 20
"""These four are the quotas of one sender. One message may be larger than its sender's quota, so that it can pass at all."""
LEAST_MESSAGES = 8
"""The least quota of a member; up to `MAX_MESSAGES / LEAST_MESSAGES` members cannot crowd each other out."""


@dataclass(slots=True)
class _Queue:
    """The waiting messages of one sender, with their sizes in bytes."""

    messages: deque[tuple[object, int]] = field(default_factory=deque)
    num_bytes: int = 0


class _Group:
    """The queues of senders with the same rights, in the order of their turns."""

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self.num_messages = self.num_bytes = 0
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._queues: OrderedDict[PeerId, _Queue] = OrderedDict()

    def has_room(self, sender: PeerId, num_bytes: int, *, quota_messages: int, quota_bytes: int) -> bool:
        if self.num_messages >= self._max_messages or self.num_bytes + num_bytes > self._max_bytes:
            return False
        queue = self._queues.get(sender)
        return queue is None or (len(queue.messages) < quota_messages and queue.num_bytes + num_bytes <= quota_bytes)

    def put(self, sender: PeerId, message: object, num_bytes: int) -> None:
        queue = self._queues.setdefault(sender, _Queue())
        queue.messages.append((message, num_bytes))
        queue.num_bytes += num_bytes
        self.num_messages += 1
        self.num_bytes += num_bytes

    def take(self) -> tuple[PeerId, object] | None:
        """Return the next message, and move its sender to the end of the turns; None if there is none."""
        if not self._queues:
            return None
        sender, queue = self._queues.popitem(last=False)
        message, num_bytes = queue.messages.popleft()
        queue.num_bytes -= num_bytes
        if queue.messages:
            self._queues[sender] = queue
        self.num_messages -= 1
        self.num_bytes -= num_bytes
        return sender, message


class Inbox:
    """The waiting messages of one peer. Belongs to one event loop."""

    def __init__(self) -> None:
        self._members = _Group(max_messages=MAX_MESSAGES, max_bytes=MAX_BYTES - MAX_STRANGER_BYTES)
        self._strangers = _Group(max_messages=MAX_STRANGER_MESSAGES, max_bytes=MAX_STRANGER_BYTES)
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return self._members.num_messages + self._strangers.num_messages

    def has_room(self, sender: PeerId, num_bytes: int, *, is_stranger: bool, num_members: int = 1) -> bool:
        """Return whether a message of `num_bytes` is within the quota of its sender and the limits of all."""
        if is_stranger:
            return self._strangers.has_room(sender, num_bytes, quota_messages=STRANGER_MESSAGES, quota_bytes=STRANGER_BYTES)
        fair = MAX_MESSAGES // max(1, num_members)
        quota = min(MEMBER_MESSAGES, max(LEAST_MESSAGES, fair))
        return self._members.has_room(sender, num_bytes, quota_messages=quota, quota_bytes=MEMBER_BYTES)

    def put(self, sender: PeerId, message: object, num_bytes: int, *, is_stranger: bool) -> None:
        """Keep a message for which there is room."""
        (self._strangers if is_stranger else self._members).put(sender, message, num_bytes)
        self._arrived.set()

    async def get(self) -> tuple[PeerId, object]:
        """Wait for the next message; return its sender and value. For one caller at a time."""
        while True:
            taken = self._members.take() or self._strangers.take()
            if taken is not None:
                return taken
            self._arrived.clear()
            await self._arrived.wait()
