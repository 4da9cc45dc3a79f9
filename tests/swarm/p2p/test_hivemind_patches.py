"""hivemind's connection to its daemon survives callers that give up, and forgets what was cancelled."""

import asyncio
import time
from uuid import UUID, uuid4

import pytest
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.p2p.p2p_daemon_bindings.utils import write_pbmsg
from hivemind.proto import p2pd_pb2

from adloco_p2p.swarm.p2p.hivemind_patches import VERSION, check_version, patch
from tests.swarm.swarm_hosts import started_hosts

PROTOCOL = "test.unary"
TIMEOUT_SECONDS, BLOCKED_SECONDS = 0.3, 0.6


class Bytes:
    """Takes what is written."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        pass


async def stream_of(*responses: p2pd_pb2.PersistentConnectionResponse) -> asyncio.StreamReader:
    written = Bytes()
    for response in responses:
        await write_pbmsg(written, response)
    reader = asyncio.StreamReader()
    reader.feed_data(written.data)
    reader.feed_eof()
    return reader


def answer(call_id: UUID, payload: bytes) -> p2pd_pb2.PersistentConnectionResponse:
    return p2pd_pb2.PersistentConnectionResponse(
        callId=call_id.bytes, callUnaryResponse=p2pd_pb2.CallUnaryResponse(response=payload)
    )


def unconnected(*, is_mended: bool) -> ControlClient:
    control = ControlClient(None, _initialized_with_create=True)
    if is_mended:
        patch(control)
    return control


async def read_answers(control: ControlClient) -> bytes:
    """The first caller has given up, the second one waits."""
    given_up, waited_for = uuid4(), uuid4()
    control._pending_calls[given_up], control._pending_calls[waited_for] = asyncio.Future(), asyncio.Future()
    control._pending_calls[given_up].cancel()
    await control._read_from_persistent_conn(await stream_of(answer(given_up, b"late"), answer(waited_for, b"in time")))
    return control._pending_calls[waited_for].result()


def test_an_answer_that_nobody_waits_for_does_not_end_the_reading():
    assert asyncio.run(read_answers(unconnected(is_mended=True))) == b"in time"
    with pytest.raises(asyncio.InvalidStateError):  # what is mended; where this passes no longer, the mend may go
        asyncio.run(read_answers(unconnected(is_mended=False)))


def test_a_cancelled_handler_is_forgotten():
    async def scenario() -> None:
        control = unconnected(is_mended=True)
        begun = asyncio.Event()

        async def handle(data: bytes, peer: PeerID) -> bytes:
            begun.set()
            await asyncio.Event().wait()
            return b""

        control.unary_handlers[PROTOCOL] = handle
        call_id = uuid4()
        request = p2pd_pb2.CallUnaryRequest(peer=b"peer", proto=PROTOCOL, data=b"data")
        asked = p2pd_pb2.PersistentConnectionResponse(callId=call_id.bytes, requestHandling=request)
        cancelled = p2pd_pb2.PersistentConnectionResponse(callId=call_id.bytes, cancel=p2pd_pb2.Cancel())
        await control._read_from_persistent_conn(await stream_of(asked))
        await begun.wait()
        (task,) = control._handler_tasks.values()
        await control._read_from_persistent_conn(await stream_of(cancelled))
        await asyncio.wait({task})
        assert task.cancelled()
        assert not control._handler_tasks

    asyncio.run(scenario())


def test_a_timeout_and_the_answer_in_one_turn_of_the_loop(tmp_path):
    """As after a suspend: the loop stands still while the answer comes in and the caller's time runs out."""

    async def scenario() -> None:
        async with started_hosts(tmp_path, 2) as (caller, called):
            loop = asyncio.get_running_loop()

            async def handle(data: bytes, peer: PeerID) -> bytes:
                if data == b"stand still":
                    loop.call_later(0.0, time.sleep, BLOCKED_SECONDS)  # the answer has just been written by then
                return data

            await called.p2p._client.add_unary_handler(PROTOCOL, handle)
            peer = PeerID.from_base58(called.me)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await caller.p2p._client.call_unary_handler(peer, PROTOCOL, b"stand still")
            assert await caller.p2p._client.call_unary_handler(peer, PROTOCOL, b"again") == b"again"

    asyncio.run(scenario())


def test_another_version_of_hivemind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_version()
    monkeypatch.setattr("adloco_p2p.swarm.p2p.hivemind_patches.version", lambda _: "1.1.13")
    with pytest.raises(AssertionError, match=f"1.1.13 is installed.*{VERSION}"):
        check_version()
