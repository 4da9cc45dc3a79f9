"""Everything that relies on the internals of hivemind 1.1.12: patches of it, and access to parts without a public name.

**The persistent connection to the daemon** carries every unary call, the DHT's and ours. One task reads it, looks up the future
of the answered call, and sets its result, without checking whether the caller has given up in the same turn of the event loop
(a timeout; after a suspend, many at once). If it has, the task ends with InvalidStateError: the peer receives nothing any more,
its own calls get no answers, and nothing is logged. The table of running handlers keeps every cancelled one, with the bytes of
its request. We replace both tables (`bindings/control.py`, `_read_from_persistent_conn`, `_handle_persistent_request`).

**The clock**: hivemind's modules import `get_dht_time` by name, so it is replaced in each of them; a test lists them.

**Foreign records**: hivemind unpacks everything that it finds under a key; see `TolerantReader`.
"""

import asyncio
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any
from uuid import UUID

from hivemind.dht import node, protocol, routing
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.utils import auth, timed_storage
from hivemind.utils.multiaddr import Multiaddr

from adloco_p2p.core.model.scalars import PeerId

VERSION = "1.1.12"
READERS = (node, protocol, routing, auth, timed_storage)
"""The modules of hivemind that our DHT runs and that ask for the time."""


def check_version() -> None:
    """Check the version before hivemind is used, because another one may differ internally."""
    found = version("hivemind")
    assert found == VERSION, f"hivemind {found} is installed, but hivemind_patches.py was written for {VERSION}"


# --- the connection to the daemon ------------------------------------------------------------------------------------


class AwaitedCalls(dict[UUID, "asyncio.Future[Any]"]):
    """The table of pending calls, which contains a call only while a task waits for the answer."""

    def __contains__(self, call_id: object) -> bool:
        future = self.get(call_id)  # type: ignore[call-overload]
        return future is not None and not future.done()


class RunningHandlers(dict[UUID, "asyncio.Task[None]"]):
    """The table of running handlers, which drops a handler when it ends in whatever way."""

    def __setitem__(self, call_id: UUID, task: "asyncio.Task[None]") -> None:
        super().__setitem__(call_id, task)
        task.add_done_callback(lambda _: self.pop(call_id, None))


def patch(control: ControlClient) -> None:
    """Replace the tables of the connection. Call it once, after the connection is open and before its first call."""
    control._pending_calls = AwaitedCalls(control._pending_calls)
    control._handler_tasks = RunningHandlers()


def control_of(p2p: P2P) -> ControlClient:
    """Return the persistent connection to the daemon."""
    return p2p._client.control


def reading_task(p2p: P2P) -> "asyncio.Task[None]":
    """Return the task that reads the connection; nothing works any more once it has ended."""
    task: asyncio.Task[None] = control_of(p2p)._read_task
    return task


def daemon_process(p2p: P2P) -> asyncio.subprocess.Process:
    """Return the process of the p2p daemon."""
    process: asyncio.subprocess.Process = p2p._child
    return process


async def connect(p2p: P2P, peer: PeerId, maddrs: Sequence[Multiaddr]) -> None:
    """Make the daemon connect to the peer, over these addresses or those that it knows. Raises P2PDaemonError."""
    await p2p._client.connect(PeerID.from_base58(peer), list(maddrs))


# --- the DHT ---------------------------------------------------------------------------------------------------------


def set_dht_clock(clock: Callable[[], float]) -> None:
    """Make hivemind's DHT use this clock, in the whole process, since one process is one peer."""
    for module in READERS:
        module.get_dht_time = clock


class TolerantReader(RecordValidatorBase):  # type: ignore[misc]  # hivemind is not typed
    """Lets a search survive foreign values. hivemind unpacks everything that it finds under a key, so one value that cannot be
    unpacked, stored by anybody, would end the search for all. Every DHTNode that `Discovery` uses needs this validator.

    It refuses nothing: hivemind drops a whole reply for one refused entry, which would do the attacker's work.
    """

    def validate(self, record: DHTRecord) -> bool:
        del record
        return True

    def strip_value(self, record: DHTRecord) -> bytes:
        """Return the bytes that hivemind unpacks: the value if it is packed bytes, as ours are, otherwise a packed None."""
        value: bytes = record.value
        return b"\xc0" if packed_bytes(value) is None else value


def packed_bytes(value: bytes) -> bytes | None:
    """Return the bytes in a packed value of the DHT (msgpack: a marker, a length, the bytes), or None for any other value."""
    for marker, width in ((0xC4, 1), (0xC5, 2), (0xC6, 4)):
        if value[:1] == bytes([marker]) and int.from_bytes(value[1 : 1 + width], "big") == len(value) - 1 - width:
            return value[1 + width :]
    return None
