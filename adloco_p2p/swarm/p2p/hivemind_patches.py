"""Everything that relies on the internals of hivemind 1.1.12: patches of it, and access to parts without a public name.

**The persistent connection to the daemon** carries every unary call, the DHT's and ours. One task reads it, looks up the future
of the call that is answered, and sets its result, without looking whether the caller has given up in the same turn of the
event loop (a timeout; after a suspend, many at once). Then the task ends with InvalidStateError: the peer receives nothing any
more, its own calls get no answers, and nothing is logged. The table of running handlers keeps every cancelled one, with the
request's bytes. Both are replaced (`bindings/control.py`, `_read_from_persistent_conn`, `_handle_persistent_request`).

**The clock**: hivemind's modules import `get_dht_time` by name, so it is replaced in each of them; a test lists them.

**Foreign records**: hivemind unpacks everything that it finds under a key, see `TolerantReader`.
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
"""Every module of hivemind that our DHT runs and that asks for the time."""


def check_version() -> None:
    """Call it before hivemind is used: another version may differ inside."""
    found = version("hivemind")
    assert found == VERSION, f"hivemind {found} is installed, but hivemind_patches.py was written for {VERSION}"


# --- the connection to the daemon ------------------------------------------------------------------------------------


class AwaitedCalls(dict[UUID, "asyncio.Future[Any]"]):
    """A call is in it as long as a task waits for the answer."""

    def __contains__(self, call_id: object) -> bool:
        future = self.get(call_id)  # type: ignore[call-overload]
        return future is not None and not future.done()


class RunningHandlers(dict[UUID, "asyncio.Task[None]"]):
    """A handler is in it as long as it runs, however it ends."""

    def __setitem__(self, call_id: UUID, task: "asyncio.Task[None]") -> None:
        super().__setitem__(call_id, task)
        task.add_done_callback(lambda _: self.pop(call_id, None))


def patch(control: ControlClient) -> None:
    """To be called once, when the connection has been opened and before anything is asked of it."""
    control._pending_calls = AwaitedCalls(control._pending_calls)
    control._handler_tasks = RunningHandlers()


def control_of(p2p: P2P) -> ControlClient:
    """The connection."""
    return p2p._client.control


def reading_task(p2p: P2P) -> "asyncio.Task[None]":
    """The task that reads the connection; nothing works any more once it has ended."""
    task: asyncio.Task[None] = control_of(p2p)._read_task
    return task


def daemon_process(p2p: P2P) -> asyncio.subprocess.Process:
    """The p2p daemon."""
    process: asyncio.subprocess.Process = p2p._child
    return process


async def connect(p2p: P2P, peer: PeerId, maddrs: Sequence[Multiaddr]) -> None:
    """Have the daemon connect to the peer, over these addresses or those it has. Raises P2PDaemonError."""
    await p2p._client.connect(PeerID.from_base58(peer), list(maddrs))


# --- the DHT ---------------------------------------------------------------------------------------------------------


def set_dht_clock(clock: Callable[[], float]) -> None:
    """From now on hivemind's DHT uses this clock, in the whole process: one process is one peer."""
    for module in READERS:
        module.get_dht_time = clock


class TolerantReader(RecordValidatorBase):  # type: ignore[misc]  # hivemind is not typed
    """Lets a search survive foreign values: hivemind unpacks everything it found under a key, and one value that cannot be
    unpacked, stored by anybody, would end the search for all. Belongs into every DHTNode that `Discovery` works on.

    It refuses nothing: hivemind drops a whole reply for one refused entry, which would do the attacker's work.
    """

    def validate(self, record: DHTRecord) -> bool:
        del record
        return True

    def strip_value(self, record: DHTRecord) -> bytes:
        """The bytes that hivemind unpacks: the value if it is packed bytes, as ours are, else a packed nothing."""
        value: bytes = record.value
        return b"\xc0" if packed_bytes(value) is None else value


def packed_bytes(value: bytes) -> bytes | None:
    """What a value of the DHT packs, where that is bytes, as in ours: a marker of msgpack, and a length of so many bytes."""
    for marker, width in ((0xC4, 1), (0xC5, 2), (0xC6, 4)):
        if value[:1] == bytes([marker]) and int.from_bytes(value[1 : 1 + width], "big") == len(value) - 1 - width:
            return value[1 + width :]
    return None
