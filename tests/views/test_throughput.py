"""The speed of the whole swarm: reports of all peers over the rounds that one node has timed."""

from dataclasses import replace

import pytest

from adloco_p2p.core.ledger.contributions import CreditedSamples
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.views import progress
from adloco_p2p.views.status import Status
from adloco_p2p.views.throughput import throughput
from tests.views.synthetic import THIS, events, replay

LENGTH = 128
DIGEST = Digest("ab" * 32)


def credit(peer: str, round: int, *, samples: int, seconds: float, instance: int = 0) -> CreditedSamples:
    item = InstanceReport.without_work(InstanceId(instance), state_digest=DIGEST)
    item = replace(item, train_seconds=seconds)
    return CreditedSamples(peer=PeerId(peer), round=round, item=item, samples=samples)


def test_all_peers_tokens_count_by_the_seconds_that_the_round_took_here() -> None:
    own = replay(events())
    seconds = dict(progress.round_durations(own))
    half, whole = 0.5 * seconds[3], seconds[3]
    found = throughput(
        own,
        [
            credit("a", 3, samples=30, seconds=half),
            credit("b", 3, samples=10, seconds=half / 2, instance=0),
            credit("b", 3, samples=10, seconds=half / 2, instance=1),  # one after the other on its device
            credit("c", 3, samples=10, seconds=10 * whole),  # a claim beyond the round counts as all of it
            credit("idle", 3, samples=0, seconds=0.0),  # only received
            credit("a", 999, samples=10, seconds=1.0),  # not timed here
        ],
        sequence_length=LENGTH,
    )
    assert [each.round for each in found] == [3]
    assert found[0].tokens_per_second == pytest.approx(60 * LENGTH / seconds[3])
    assert found[0].computing == pytest.approx((0.5 + 0.5 + 1.0) / 3)


def test_without_a_ledger_it_is_the_speed_of_the_node_alone() -> None:
    own = replay(events())
    found = throughput(own, [], sequence_length=LENGTH)
    first = found[0]
    samples = sum(result.samples for result in own.results.values() if result.round == first.round)
    assert own.peer == THIS
    assert first.tokens_per_second == pytest.approx(samples * LENGTH / dict(progress.round_durations(own))[first.round])
    assert throughput(Status(), [], sequence_length=LENGTH) == []
