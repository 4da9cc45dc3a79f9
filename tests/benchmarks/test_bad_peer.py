"""The liars of the benchmarks lie, and do not fall over their own changes to the node."""

import asyncio
from typing import Any

import pytest
import torch

from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.runtime.adapters.swarm_ports import NetworkAveraging
from adloco_p2p.swarm.allreduce.averager import Averager
from adloco_p2p.swarm.allreduce.member_side import MemberSide
from benchmarks import bad_peer
from benchmarks.unplanned import unplanned

ME, OTHER = PeerId("me"), PeerId("other")
KEY = Digest("0" * 64)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Average, torch.Tensor]]:
    """What the real averager is asked for, once a liar has changed it."""
    seen: list[tuple[Average, torch.Tensor]] = []

    async def average(self: Averager, asked: Average, vector: torch.Tensor, *, on_decided: Any, on_not_shown: Any) -> Any:
        seen.append((asked, vector))

    monkeypatch.setattr(Averager, "average", average)
    monkeypatch.setattr(MemberSide, "_check_own_vector", MemberSide._check_own_vector)  # both are put back at the end
    return seen


def average_as_a_node_does() -> None:
    averager = Averager.__new__(Averager)
    averager._context = type("Context", (), {"own_peer": ME})()

    async def out_of_reach(_: object) -> tuple[PeerId, ...]:
        return ()

    averaging = NetworkAveraging(averager, size=lambda _: 3, out_of_reach=out_of_reach, begin=lambda _: True)
    effect = unplanned(key=KEY, weights=((ME, 2), (OTHER, 3)), timeout_seconds=1.0)
    vector = torch.tensor([1.0, 2.0, 3.0])
    asyncio.run(averaging.average(effect, vector, on_decided=lambda _: None, on_not_shown=lambda *_: None))


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("flip", [-10.0, -20.0, -30.0]), ("nan", [float("nan")] * 3), ("shape", [1.0, 2.0, 3.0, 1.0, 2.0, 3.0])],
)
def test_what_a_liar_sends(asked: list[tuple[Average, torch.Tensor]], kind: str, sent: list[float]) -> None:
    bad_peer.KINDS[kind]()
    average_as_a_node_does()
    ((_, vector),) = asked
    assert torch.equal(vector.nan_to_num(7.0), torch.tensor(sent).nan_to_num(7.0))


def test_a_liar_claims_more_weight_than_the_plan_gives_it(
    asked: list[tuple[Average, torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OuterRound, "report", OuterRound.report)
    bad_peer.weight()
    average_as_a_node_does()
    ((effect, _),) = asked
    assert effect.weights == ((ME, bad_peer.HUGE), (OTHER, 3))
