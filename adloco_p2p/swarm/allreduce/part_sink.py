"""The receiver of the parts that arrive on one stream."""

import asyncio
from collections.abc import Callable

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.tensor_codec import VARIABLE_HEAD
from adloco_p2p.swarm.allreduce.allreduce_spec import Part


class PartSink:
    """Puts arriving parts, in order, each into its own room.

    `permitted` returns how many parts may have begun by now. `parts` is None until `expect` names them. `length` returns the
    bytes of a part from its beginning, at most those of its room, and is called once a `VARIABLE_HEAD` is there; it is None
    where every part fills its room.
    """

    def __init__(
        self,
        sender: PeerId,
        parts: tuple[Part, ...] | None,
        *,
        room: Callable[[Part], memoryview],
        on_part: Callable[[Part], None],
        permitted: Callable[[], int],
        length: Callable[[Part, memoryview], int] | None = None,
    ) -> None:
        self.num_arrived = 0
        self.num_bytes = 0
        """Bytes that have come, of whole parts and of the current one."""
        self._sender = sender
        self._parts = parts
        self._room, self._on_part, self._permitted = room, on_part, permitted
        self._length = length
        self._whole = self._view = memoryview(b"")
        """The room of the current part, and its rest that is still awaited."""
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    def expect(self, parts: tuple[Part, ...]) -> None:
        """Set the parts that will come."""
        assert self.num_arrived == 0
        self._parts = parts

    def skip(self, count: int) -> None:
        """Count the first parts as arrived, because they are here already."""
        assert self.num_bytes == 0
        self.num_arrived = count
        self._wake()

    def target(self, num_bytes: int) -> memoryview:
        if not len(self._view):
            if self._parts is None or self.num_arrived == len(self._parts) or self.num_arrived >= self._permitted():
                raise RemoteProtocolError(f"{self._sender} sends more than was asked")
            self._whole = self._view = self._room(self._parts[self.num_arrived])
        if num_bytes > len(self._view):
            raise RemoteProtocolError(f"{self._sender} sends a part that is too long")
        return self._view[:num_bytes]

    def arrived(self, num_bytes: int) -> None:
        assert self._parts is not None, "there is no room for them"
        filled = len(self._whole) - len(self._view) + num_bytes
        self._view = self._view[num_bytes:]
        self.num_bytes += num_bytes
        if self._length is not None and filled >= VARIABLE_HEAD.size:
            self._shorten(self._length(self._parts[self.num_arrived], self._whole), filled)
        if len(self._view):
            return
        self._whole = self._view = memoryview(b"")  # even an empty view of the room would keep it in memory
        self.num_arrived += 1
        self._wake()
        self._on_part(self._parts[self.num_arrived - 1])

    def _wake(self) -> None:
        for count, waiter in self._waiters:
            if self.num_arrived >= count and not waiter.done():
                waiter.set_result(None)

    def _shorten(self, length: int, filled: int) -> None:
        """Reduce the awaited bytes to the length that the part announces."""
        if filled > length:
            raise RemoteProtocolError(f"{self._sender} sends a part that is too long")
        self._whole = self._whole[:length]
        self._view = self._whole[filled:]

    @property
    def rest_bytes(self) -> int:
        """Bytes still to come on a stream whose parts all fill their rooms; only once the parts are known."""
        return sum(part.num_sent_bytes for part in self._parts or ()) - self.num_bytes

    @property
    def is_complete(self) -> bool:
        return self._parts is not None and self.num_arrived == len(self._parts)

    async def wait_for(self, count: int) -> None:
        """Wait until so many parts are here. The caller sets a limit."""
        if self.num_arrived < count:
            entry = (count, asyncio.get_running_loop().create_future())
            self._waiters.append(entry)
            try:
                await entry[1]
            finally:
                self._waiters.remove(entry)
