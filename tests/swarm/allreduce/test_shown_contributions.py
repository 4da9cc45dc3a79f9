"""Contributions that assessors fetch whole, between real peers on loopback: what the others averaged, and nothing else."""

import asyncio
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch

from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.errors import AveragingError, ContributionNotShown
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.swarm.allreduce import shown_contributions
from adloco_p2p.swarm.allreduce.allreduce_spec import Part
from adloco_p2p.swarm.allreduce.attempt_end import AttemptEnd
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.allreduce.handshake import Hello
from adloco_p2p.swarm.allreduce.recheck import Rechecks
from adloco_p2p.swarm.allreduce.settled import Settled
from adloco_p2p.swarm.allreduce.shown_contributions import ShownContributions
from adloco_p2p.swarm.transport.framed_stream import FramedStream
from tests.swarm.averaging_peers import Clock, Peers, averaged, key_of, mesh_of, until

SIZE, HOSTS = 50_003, 4
SUBJECT = 2
ONE = InstanceId(0)

peers = mesh_of(HOSTS)


def vectors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(SIZE, generator=generator)
    return [common + torch.randn(SIZE, generator=generator) for _ in range(HOSTS)]


def allow(peers: Peers, *assessors: int) -> None:
    peers[SUBJECT].averager.show_contribution(ONE, 0, [peers[index].peer_id for index in assessors])


async def fetched(peers: Peers, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    return await peers[by].averager.contribution(ONE, 0, peers[SUBJECT].peer_id)


@pytest.mark.parametrize(
    ("rule", "codec"),
    [
        ("mean", "float32"),
        ("robust", "int8"),
        pytest.param("mean", "topk2", marks=pytest.mark.heavy),
        pytest.param("clip", "bfloat16", marks=pytest.mark.heavy),
        pytest.param("mean", "sign", marks=pytest.mark.heavy),
        pytest.param("mean", "sign_int4", marks=pytest.mark.heavy),
        pytest.param("geometric_median", "int4", marks=pytest.mark.heavy),
    ],
)
def test_assessors_get_the_contribution_as_it_was_averaged_and_the_mean_of_the_others(
    peers: Peers, rule: str, codec: str
) -> None:
    sent, weights = vectors(), (1, 2, 3, 1)
    with peers.using(aggregation=rule, codec=codec, recheck=0.0, is_assessed=True):
        result, *_ = averaged(peers.average(f"shown {rule} {codec}", sent, weights))
        before = result.vector.clone()
        allow(peers, 0, 3)

        async def both() -> list[tuple[torch.Tensor, torch.Tensor]]:
            return list(await asyncio.gather(fetched(peers, 0), fetched(peers, 3)))

        (vector, others), (theirs, also) = peers.run(both())
    assert torch.equal(vector, theirs) and torch.equal(others, also), "equal bytes for all assessors"
    assert torch.equal(result.vector, before), "it is kept for repairs"
    named = codec_named(codec)
    decoded = [named.decode(named.encode(each)) for each in sent]
    assert torch.equal(vector, decoded[SUBJECT]) or codec != "float32"
    assert float(torch.cosine_similarity(vector, decoded[SUBJECT], dim=0)) > 0.999
    if codec == "float32":
        expected = (decoded[0] + 2 * decoded[1] + decoded[3]) / 4
        assert torch.allclose(others, expected, atol=1e-5)


def test_only_those_that_are_drawn_are_served_and_each_once(peers: Peers) -> None:
    with peers.using(is_assessed=True):
        averaged(peers.average("drawn", vectors(), (1, 1, 1, 1)))
        allow(peers, 0)
        peers.run(fetched(peers, 0))
        for other in (0, 1):
            with pytest.raises(ContributionNotShown, match="did not show its contribution"):
                peers.run(fetched(peers, other))


def test_an_assessor_that_asks_before_the_subject_knows_of_it_waits(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for, has_come = Rechecks.asked_for, asyncio.Event()

    async def noting(self: Rechecks, peer: PeerId, hello: Hello) -> Settled:
        has_come.set()
        return await asked_for(self, peer, hello)

    monkeypatch.setattr(Rechecks, "asked_for", noting)
    with peers.using(is_assessed=True):
        averaged(peers.average("early", vectors(), (1, 1, 1, 1)))

        async def early() -> torch.Tensor:
            asking = asyncio.ensure_future(fetched(peers, 0))
            await has_come.wait()
            allow(peers, 0)
            return (await asking)[0]

        assert torch.equal(peers.run(early()), vectors()[SUBJECT])


def test_another_contribution_than_the_signed_one_is_not_taken(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = Rechecks.hold

    def changing(self: Rechecks, settled: Settled) -> None:
        changed = [bytes([part[0] ^ 1]) + bytes(part[1:]) for part in settled.own]
        hold(self, settled if settled.me != SUBJECT else replace(settled, own=changed))

    monkeypatch.setattr(Rechecks, "hold", changing)
    with peers.using(is_assessed=True):
        averaged(peers.average("changed", vectors(), (1, 1, 1, 1)))
        allow(peers, 0)
        with pytest.raises(ContributionNotShown, match="did not commit itself to"):
            peers.run(fetched(peers, 0))


def test_a_subject_that_is_asked_late_is_not_at_fault(peers: Peers) -> None:
    """Once the next average has begun here it may have ended there, and what was sent before is dropped."""
    with peers.using(is_assessed=True):
        averaged(peers.average("late", vectors(), (1, 1, 1, 1)))
        averager = peers[0].averager
        (settled,) = averager._rechecks.ended(ONE, 0)
        averager._rechecks.note_begun(replace(settled.spec, round=1))
        with pytest.raises(AveragingError) as caught:
            peers.run(fetched(peers, 0))
        assert not isinstance(caught.value, ContributionNotShown)


def test_the_next_average_of_another_instance_drops_nothing(peers: Peers) -> None:
    """Instances of one host begin and end their rounds one after the other."""
    with peers.using(is_assessed=True):
        averaged(peers.average("one", vectors(), (1, 1, 1, 1)))
        averaged(peers.average("other", vectors(), (1, 1, 1, 1), instance=InstanceId(1), round=1))
        with pytest.raises(ContributionNotShown, match="did not show"):
            peers.run(refused(peers))
        allow(peers, 0)
        assert torch.equal(peers.run(fetched(peers, 0))[0], vectors()[SUBJECT])
        averaged(peers.average("two on", vectors(), (1, 1, 1, 1), instance=InstanceId(1), round=2))
        assert peers[0].averager._rechecks.ended(ONE, 0) == [], "the instance may be gone"


def test_where_nobody_looks_at_contributions_no_stream_waits_for_one(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[PeerId] = []

    async def noting(_: ShownContributions, stream: FramedStream, __: Hello) -> None:
        served.append(stream.peer)

    monkeypatch.setattr(ShownContributions, "serve", noting)
    for is_assessed in (False, True):
        with peers.using(recheck=1.0, is_assessed=is_assessed):
            averaged(peers.average(f"looked at: {is_assessed}", vectors(), (1, 1, 1, 1)))
            with pytest.raises(AveragingError):
                peers.run(fetched(peers, 0))
        assert bool(served) == is_assessed


def test_a_lost_stream_is_asked_for_again_and_a_second_one_is_the_subjects_fault(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_data, losses = FramedStream.send_data, 0

    async def losing(self: FramedStream, data: memoryview) -> None:
        nonlocal losses
        if losses > 0:
            losses -= 1
            self.abort()
        await send_data(self, data)

    with peers.using(is_assessed=True):
        averaged(peers.average("lost", vectors(), (1, 1, 1, 1)))
        monkeypatch.setattr(FramedStream, "send_data", losing)
        losses = 1
        allow(peers, 0)
        assert torch.equal(peers.run(fetched(peers, 0))[0], vectors()[SUBJECT])
        losses = 2
        allow(peers, 0)
        with pytest.raises(ContributionNotShown):
            peers.run(fetched(peers, 0))
    assert losses == 0


def test_what_the_own_network_did_is_not_the_subjects_fault(peers: Peers) -> None:
    async def gone() -> str:
        return "this peer's own network daemon is gone"

    with peers.using(is_assessed=True):
        averaged(peers.average("own fault", vectors(), (1, 1, 1, 1)))
        peers[0].averager._shown._local_fault = gone
        with pytest.raises(AveragingError) as caught:
            peers.run(refused(peers))
        assert not isinstance(caught.value, ContributionNotShown)


@pytest.mark.parametrize(
    ("num_shown", "is_long", "is_cut"), [(2, True, False), (2, True, True), (2, False, False), (0, False, True)]
)
def test_one_that_is_still_sending_when_the_next_average_ends_is_at_fault_where_it_had_time(
    peers: Peers, monkeypatch: pytest.MonkeyPatch, num_shown: int, *, is_long: bool, is_cut: bool
) -> None:
    """Six times as long as the average took, also where it then ends the stream; one that has sent nothing by then had time
    enough."""
    send_data, num_sent, decoded = FramedStream.send_data, 0, list[Part]()
    has_stopped, may_go_on = asyncio.Event(), asyncio.Event()

    async def slow(self: FramedStream, data: memoryview) -> None:
        nonlocal num_sent
        if num_sent == num_shown:
            has_stopped.set()
            await may_go_on.wait()
            if is_cut:
                self.abort()
        num_sent += 1
        await send_data(self, data)

    async def story() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(FramedStream, "send_data", slow)
            patched.setattr(shown_contributions, "_decode", lambda _, part, *__: decoded.append(part))
            asking = asyncio.ensure_future(fetched(peers, 0))
            await until(lambda: has_stopped.is_set() and len(decoded) == num_shown)
        for index in range(HOSTS):
            rechecks = peers[index].averager._rechecks
            (settled,) = rechecks.ended(ONE, 0)
            later = replace(settled, spec=replace(settled.spec, round=1, key=key_of("the next one")))
            rechecks.note_begun(later.spec)
            rechecks.hold(later)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Clock)
        loop.ahead_seconds += 6 * seconds if is_long else 0.0
        may_go_on.set()
        await asking

    with peers.using(is_assessed=True):
        averaged(peers.average(f"slow {num_shown} {is_long} {is_cut}", vectors(), (1, 1, 1, 1)))
        rechecks = peers[0].averager._rechecks
        seconds = 60.0
        rechecks._held = OrderedDict((key, replace(old, seconds=seconds)) for key, old in rechecks._held.items())
        allow(peers, 0)
        with pytest.raises(AveragingError) as caught:
            peers.run(story())
    assert isinstance(caught.value, ContributionNotShown) == (is_long or not num_shown)


@pytest.mark.parametrize(("rule", "codec"), [("mean", "int8"), pytest.param("robust", "float32", marks=pytest.mark.heavy)])
def test_a_subject_whose_attempt_failed_and_that_fetched_the_average_shows_what_it_sent(
    peers: Peers, monkeypatch: pytest.MonkeyPatch, rule: str, codec: str
) -> None:
    """The others have the result, and the core gives the attempt up."""
    wait, sent, name = AttemptEnd.wait, vectors(), f"its attempt failed {rule}"

    async def hanging(self: AttemptEnd) -> None:
        await wait(self)
        attempt = peers[SUBJECT].attempt(name)
        if attempt is not None and self is attempt._state.end:
            await asyncio.Event().wait()

    monkeypatch.setattr(AttemptEnd, "wait", hanging)
    with peers.using(aggregation=rule, codec=codec, is_assessed=True):

        async def story() -> tuple[Averaged, torch.Tensor]:
            weights = peers.weights(1, 1, 1, 1)
            tasks = [asyncio.ensure_future(peers[index].average(name, weights, sent[index])) for index in range(HOSTS)]
            subjects = tasks.pop(SUBJECT)
            result, *_ = await asyncio.gather(*tasks)
            subjects.cancel()
            await asyncio.gather(subjects, return_exceptions=True)
            fetching = peers[SUBJECT].repair(name, result, [peers[0]], vector=sent[SUBJECT])
            allow(peers, 0)
            return await fetching, (await fetched(peers, 0))[0]

        repaired, vector = peers.run(story())
        assert peers[SUBJECT].averager._rechecks.ended(ONE, 0) == [], "it assesses nothing itself"
        averaged(peers.average(f"after {name}", sent, (1, 1, 1, 1), round=1))
        assert not peers[SUBJECT].averager._rechecks._sent
    assert repaired.finished.digest
    named = codec_named(codec)
    assert float(torch.cosine_similarity(vector, named.decode(named.encode(sent[SUBJECT])), dim=0)) > 0.999


def test_a_result_that_the_next_average_overwrites_during_the_fetch_is_not_looked_at(peers: Peers) -> None:
    """A result that moves to a file, or is forgotten, gives its memory to the next average. The subject takes that long to show
    its contribution."""
    sent = vectors()
    with peers.using(codec="int8", recheck=0.0, is_assessed=True):
        averaged(peers.average("overwritten", sent, (1, 1, 1, 1)))
        allow(peers, 0, 3)
        _, expected = peers.run(fetched(peers, 3))
        averager = peers[0].averager
        key = key_of("overwritten")
        shown = averager._shown.fetch

        async def late(settled: Settled, subject: PeerId, executor: object) -> torch.Tensor:
            vector = await shown(settled, subject, executor)  # type: ignore[arg-type]
            result = averager._results.of(key)
            assert result is not None
            before = result.encoded
            store = averager._results._store
            store.move(key, before, before.copy(), may_reuse=True)
            room = averager._results.new_buffer(before.nbytes)
            assert room is before
            room[:] = 255
            return vector

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(averager._shown, "fetch", late)
            _, others = peers.run(fetched(peers, 0))
    assert torch.equal(others, expected)


async def refused(peers: Peers) -> None:
    """An assessor that is not drawn, of a subject that knows who is."""
    allow(peers, 3)
    await fetched(peers, 0)


def test_a_peer_that_was_not_in_the_average_looks_at_nothing(peers: Peers) -> None:
    with peers.using(is_assessed=True):
        averaged(peers.average("without", vectors(), (1, 1, 1, 0)))
        with pytest.raises(AveragingError, match="not in that average"):
            peers.run(peers[0].averager.contribution(ONE, 7, peers[SUBJECT].peer_id))
        with pytest.raises(AveragingError, match="has no contribution"):
            peers.run(peers[0].averager.contribution(ONE, 0, peers[3].peer_id))
