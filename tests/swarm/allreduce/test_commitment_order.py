"""When a contributor's commitment travels, beside its parts."""

import asyncio

import pytest

from adloco_p2p.swarm.allreduce.member_side import MemberSide
from adloco_p2p.swarm.allreduce.own_contribution import OwnContribution
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
