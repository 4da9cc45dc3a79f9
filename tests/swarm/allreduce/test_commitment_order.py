"""When a contributor's commitment travels, beside its parts."""

import asyncio
from types import SimpleNamespace

import pytest

from adloco_p2p.swarm.allreduce.handshake import THROUGHPUT
from adloco_p2p.swarm.allreduce.member_side import MemberSide
from adloco_p2p.swarm.allreduce.own_contribution import OwnContribution
from adloco_p2p.swarm.allreduce.reducer_side import ReducerSide
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind
from tests.swarm.averaging_peers import vectors_of
from tests.swarm.linked_attempts import LinkedPeers


@pytest.mark.parametrize("rule", ["mean", "robust"])
def test_parts_wait_for_the_commitment_only_where_they_are_reduced_as_they_come(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[FrameKind] = []
    send = FramedStream.send

    def noted(self: FramedStream, kind: FrameKind, payload: bytes | memoryview = b"") -> None:
        sent.append(kind)
        send(self, kind, payload)

    async def slowly(self: MemberSide, own: OwnContribution) -> None:
        for _ in range(100):  # whatever waits for nothing gets on
            await asyncio.sleep(0)
        await commit(self, own)

    commit = MemberSide._commit
    monkeypatch.setattr(MemberSide, "_commit", slowly)
    monkeypatch.setattr(FramedStream, "send", noted)
    peers = LinkedPeers(4, rule=rule)
    spec = peers.spec(20_483)
    peers.average(spec, vectors_of(4, spec.size))
    of_uploads = [kind for kind in sent if kind in (FrameKind.COMMITMENT, FrameKind.DATA)]
    num_commitments = 4 * 3
    assert of_uploads.count(FrameKind.COMMITMENT) == num_commitments
    is_first = FrameKind.DATA not in of_uploads[:num_commitments]
    assert is_first == (rule == "mean")


@pytest.mark.parametrize(("needs_gram", "seconds"), [(False, 2.0), (True, 12.0)])
def test_the_speed_of_an_upload_is_counted_from_when_its_parts_may_travel(needs_gram: bool, seconds: float) -> None:
    """The commitment comes after 10 s, the first parts 2 s later: hashing is no slow uplink where they wait for it."""
    now, sent = 0.0, list[bytes]()

    async def pass_until(instant: float) -> None:
        nonlocal now
        now = max(now, instant)

    reducer = ReducerSide.__new__(ReducerSide)
    commitments = SimpleNamespace(wait_for=lambda _: pass_until(10.0))
    reducer._state = SimpleNamespace(spec=SimpleNamespace(needs_gram=needs_gram), commitments=commitments)  # type: ignore[assignment]
    reducer._loop = SimpleNamespace(time=lambda: now)  # type: ignore[assignment]
    stream = SimpleNamespace(send=lambda _, payload: sent.append(payload))
    sink = SimpleNamespace(wait_for=lambda _: pass_until(12.0))
    asyncio.run(reducer._send_throughput(stream, 1, sink, ()))  # type: ignore[arg-type]
    assert sent == [THROUGHPUT.pack(0, seconds)]
