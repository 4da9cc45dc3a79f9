"""Averaging between real peers on loopback: everything that goes wrong ends soon, with a name, and leaves nothing behind."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import AveragingError
from adloco_p2p.swarm.allreduce import member_side
from adloco_p2p.swarm.allreduce.allreduce_spec import MAX_LANES
from adloco_p2p.swarm.allreduce.attempt_register import AttemptRegister
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.allreduce.averager import Averager
from adloco_p2p.swarm.allreduce.handshake import HANDLER, Hello, Purpose, failure
from adloco_p2p.swarm.allreduce.result_exchange import RESULT_KIND
from adloco_p2p.swarm.transfer.chunk_protocol import handler_name
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.framed_stream import FRAME_BYTES, FramedStream, FrameKind, StreamLost, open_stream
from adloco_p2p.swarm.transport.stream_acceptor import StreamLimits
from benchmarks.unplanned import unplanned
from tests.swarm.averaging_peers import (
    LIMITS,
    TIMEOUT_SECONDS,
    Peer,
    Peers,
    averaged,
    freeze,
    key_of,
    kill,
    mesh_of,
    signing,
    suspects_of,
    thaw,
    until,
    vectors_of,
)

daemons = mesh_of(4)


@pytest.fixture
def peers(daemons: Peers) -> Iterator[Peers]:
    """New averagers on the same daemons."""
    with daemons.using():
        yield daemons
    assert daemons.loop_errors == []


def assert_still_works(peers: Peers, who: tuple[int, ...], *, name: str = "afterwards") -> None:
    weights = tuple(int(index in who) for index in range(max(who) + 1))
    members = tuple(pair for pair in peers.weights(*weights) if pair[1])

    async def again() -> list[Averaged]:
        return await asyncio.gather(*(peers[index].average(name, members, torch.full((5_000,), float(index))) for index in who))

    results = peers.run(again())
    assert len({result.finished.digest for result in results}) == 1
    assert torch.allclose(results[0].vector, torch.tensor(sum(who) / len(who)))


def test_a_vector_that_is_not_finite_is_refused_where_it_is(peers: Peers) -> None:
    vectors = vectors_of(3, 20_000)
    vectors[1][12_345] = float("nan")
    results = peers.average("nan", vectors, (1, 1, 1))
    assert [suspects_of(result) for result in results] == [(peers[1].peer_id,)] * 3
    assert "float32" in str(results[1])
    assert_still_works(peers, (0, 2))


def test_a_sender_of_nan_is_named(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reducers look for themselves: here the sender's own check is out of order."""

    async def reset(_self: member_side.MemberSide) -> None:
        return

    monkeypatch.setattr(member_side.MemberSide, "_check_own_vector", reset)
    vectors = vectors_of(3, 20_000)
    vectors[2][19_999] = float("inf")  # in the shard that peer 2 reduces itself
    vectors[2][0] = float("nan")
    results = peers.average("bad sender", vectors, (1, 1, 1))
    assert [suspects_of(result) for result in results] == [(peers[2].peer_id,)] * 3


def test_a_value_too_large_for_the_codec_is_refused(peers: Peers) -> None:
    vectors = vectors_of(2, 5_000)
    vectors[0][77] = 70_000.0
    with peers.using(codec="float16"):
        results = peers.average("overflow", vectors, (1, 1))
    assert [suspects_of(result) for result in results] == [(peers[0].peer_id,)] * 2
    assert "float16" in str(results[0])


def test_another_shape_is_named(peers: Peers) -> None:
    vectors = vectors_of(3, 9_000)
    vectors[1] = vectors[1][:-1].clone()
    results = peers.average("shape", vectors, (1, 1, 1))
    assert not any("deadline" in str(result) for result in results), "nobody waited for it"
    assert suspects_of(results[0]) == suspects_of(results[2]) == (peers[1].peer_id,)
    assert peers[1].peer_id not in suspects_of(results[1])
    assert_still_works(peers, (0, 1, 2))


def test_members_that_disagree_on_weights_do_not_average(peers: Peers) -> None:
    async def disagree() -> list[object]:
        calls = [
            peers[index].average("weights", weights, torch.ones(500))
            for index, weights in enumerate([peers.weights(1, 1), peers.weights(1, 1000)])
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    assert all(isinstance(result, AveragingError) for result in peers.run(disagree()))


@pytest.mark.parametrize("weight", [1, 3])
def test_a_member_that_never_comes_is_named_at_the_deadline(peers: Peers, weight: int) -> None:
    who = (0, 1, 3)
    results = peers.average(
        "missing",
        vectors_of(4, 20_000),
        (1, 1, weight, 0),
        who=who,
        meanwhile=lambda: peers.meet_deadline("missing", who, missing=2),
    )
    assert all("deadline" in str(result) for result in results)
    assert [suspects_of(result) for result in results] == [(peers[2].peer_id,)] * 3
    assert_still_works(peers, (0, 1, 2, 3))


def test_a_member_that_comes_late_is_waited_for(peers: Peers) -> None:
    async def come_later() -> list[Averaged]:
        def average(index: int) -> asyncio.Task[Averaged]:
            call = peers[index].average("late", peers.weights(1, 1, 1), torch.ones(5_000))
            return asyncio.create_task(call)

        early, loop = [average(0), average(1)], asyncio.get_running_loop()
        begun = loop.time()
        await peers.let_pass("late", lambda: loop.time() > begun + 1.5 * LIMITS.stall_seconds)  # longer than a silence may be
        assert not any(task.done() for task in early)
        return await asyncio.gather(*early, average(2))

    assert len({result.finished.digest for result in peers.run(come_later())}) == 1


def test_strangers_and_garbage_change_nothing(peers: Peers) -> None:
    """A stranger knocks with the right key, with the wrong one, with noise, with lengths beyond all limits."""
    target, stranger = peers[0], peers[3]

    async def knock(payloads: list[bytes], *, handler: str = HANDLER, is_answered: bool = True) -> None:
        stream = await open_stream(stranger.p2p, target.peer_id, handler, timeout_seconds=TIMEOUT_SECONDS)
        with contextlib.suppress(StreamLost):
            for payload in payloads:
                stream._transport.write(payload)
            await (stream.receive(FrameKind.HELLO_REPLY) if is_answered else stream.flushed())
        stream.abort()

    def frame(kind: int, payload: bytes, *, length: int | None = None) -> bytes:
        return bytes([0xAD, kind, 0, 0]) + (len(payload) if length is None else length).to_bytes(4, "little") + payload

    hello = Hello(purpose=Purpose.AVERAGE, key=key_of("visited")).encode()
    abort = Hello(purpose=Purpose.ABORT, key=key_of("visited")).encode()

    async def everything() -> None:
        await asyncio.gather(
            knock([b"GET / HTTP/1.1\r\n\r\n" * 9]),
            knock([bytes(3)], is_answered=False),  # the rest of a header may come yet
            knock([frame(1, b"", length=2**32 - 1)]),
            knock([frame(1, hello[:-1])]),
            knock([frame(1, b"x" * len(hello))]),
            knock([frame(1, hello)]),
            knock([frame(1, hello), frame(3, bytes(100))]),
            knock([frame(3, bytes(FRAME_BYTES))]),
            knock([frame(99, b"")]),
            knock([frame(4, b"odd")]),
            knock([frame(1, bytes.fromhex(key_of("visited")))], handler=handler_name(RESULT_KIND)),
            knock([frame(1, b"x")], handler=handler_name(RESULT_KIND)),
            knock([frame(6, bytes(4))], handler=handler_name(RESULT_KIND)),
            knock([frame(1, abort), frame(7, b"{}")]),
            knock([frame(1, abort), frame(7, b'{"reason":"no","status":"failed","suspects":[]}')]),
            knock([frame(2, b"")] * 200),
        )

    vectors = vectors_of(3, 30_000)
    results = averaged(peers.average("visited", vectors, (1, 1, 1), meanwhile=everything))
    assert torch.allclose(results[0].vector, torch.stack(vectors).mean(0), atol=1e-6)
    unvisited = averaged(peers.average("unvisited", vectors, (1, 1, 1)))
    assert results[0].finished.digest == unvisited[0].finished.digest
    peers.run(until(lambda: stranger.peer_id not in target.averager._places.taken))


def test_streams_of_strangers_get_few_places_and_little_patience(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    """They name an average that nobody has begun. Members may do so for minutes: this peer may be late."""
    averager, member, stranger = peers[0].averager, peers[1], peers[3]
    monkeypatch.setattr(averager, "_limits", replace(LIMITS, stranger_seconds=0.3))
    monkeypatch.setattr(averager._places, "limits", StreamLimits(in_all=99, per_peer=9, strangers=3, per_stranger=2))
    monkeypatch.setattr(averager._endpoint, "members", lambda: {peers[0].peer_id, peers[1].peer_id, peers[2].peer_id})
    hello = Hello(purpose=Purpose.AVERAGE, key=key_of("never begun")).encode()

    async def knock(peer: Peer) -> FramedStream:
        stream = await open_stream(peer.p2p, peers[0].peer_id, HANDLER, timeout_seconds=TIMEOUT_SECONDS)
        stream.send(FrameKind.HELLO, hello)
        return stream

    async def scenario() -> None:
        streams = [await knock(stranger) for _ in range(5)]
        waiting = await knock(member)
        while averager._places.taken != {member.peer_id: 1} or not all(stream.is_lost for stream in streams):
            assert averager._places.taken[stranger.peer_id] <= 2
            await asyncio.sleep(0)
        assert averager._places.num_of_strangers == 0
        assert not waiting.is_lost
        for stream in (waiting, *streams):
            stream.abort()

    peers.run(scenario())


def test_streams_of_a_member_wait_for_no_more_averages_than_it_may_take_part_in(peers: Peers) -> None:
    """Those of an honest member, which has begun an average before this peer, are not touched by it."""
    averager, liar, honest = peers[0].averager, peers[1], peers[2]
    keys = [key_of(f"invented {number}") for number in range(6)]
    waiting, weights = averager._attempts._waiting, peers.weights(1, 0, 1)[::2]

    async def knock(key: Digest, lane: int) -> FramedStream:
        stream = await open_stream(liar.p2p, peers[0].peer_id, HANDLER, timeout_seconds=TIMEOUT_SECONDS)
        stream.send(FrameKind.HELLO, Hello(purpose=Purpose.AVERAGE, key=key, lane=lane).encode())
        await until(lambda: (key, lane) in waiting.get(liar.peer_id, ()))
        return stream

    async def scenario() -> list[Averaged]:
        early = asyncio.create_task(honest.average("begun", weights, torch.ones(30_000)))
        await until(lambda: len(waiting.get(honest.peer_id, ())) == MAX_LANES)
        streams = [await knock(key, lane) for key in keys for lane in range(MAX_LANES)]
        streams.append(await knock(keys[-1], MAX_LANES - 1))  # the same one again
        await until(lambda: averager._places.taken[liar.peer_id] == 2 * MAX_LANES)
        await until(lambda: sum(not stream.is_lost for stream in streams) == 2 * MAX_LANES)
        assert {key for key, _ in waiting[liar.peer_id]} == set(keys[-2:])
        assert len(waiting[honest.peer_id]) == MAX_LANES
        results = await asyncio.gather(early, peers[0].average("begun", weights, torch.zeros(30_000)))
        for stream in streams:
            stream.abort()
        await until(lambda: not waiting)
        return list(results)

    assert len({result.finished.digest for result in peers.run(scenario())}) == 1


def test_a_peer_a_plan_behind_keeps_the_streams_of_two_averages_until_it_begins(peers: Peers) -> None:
    """The others are in the next round of an instance already, and wait for longer than a silence may be."""
    names, behind = ("this round", "next round"), peers[0]
    waiting = behind.averager._attempts._waiting

    async def scenario() -> list[Averaged]:
        def average(index: int, name: str) -> asyncio.Task[Averaged]:
            return asyncio.create_task(peers[index].average(name, peers.weights(1, 1, 1), torch.full((30_000,), float(index))))

        early, loop = [average(index, name) for index in (1, 2) for name in names], asyncio.get_running_loop()
        await until(lambda: [len(waiting.get(peers[index].peer_id, ())) for index in (1, 2)] == [2 * MAX_LANES] * 2)
        begun = loop.time()
        await peers.let_pass(names[0], lambda: loop.time() > begun + 1.5 * LIMITS.stall_seconds)
        assert not any(task.done() for task in early)
        return await asyncio.gather(*early, *(average(0, name) for name in names))

    assert [result.vector[0].item() for result in peers.run(scenario())] == [1.0] * 6
    assert not waiting


def test_a_note_of_a_stranger_about_an_average_to_come_is_not_kept(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    averager, notes = peers[0].averager, peers[0].averager._attempts.early_notes
    monkeypatch.setattr(averager._endpoint, "members", lambda: {peers[0].peer_id, peers[1].peer_id})

    async def tell(peer: Peer) -> FramedStream:
        stream = await open_stream(peer.p2p, peers[0].peer_id, HANDLER, timeout_seconds=TIMEOUT_SECONDS)
        stream.send(FrameKind.HELLO, Hello(purpose=Purpose.ABORT, key=key_of("to come")).encode())
        stream.send(FrameKind.NOTE, failure("no", ()).encode())
        return stream

    async def scenario() -> None:
        for peer in (peers[3], peers[1]):
            stream = await tell(peer)
            await stream.until_closed(TIMEOUT_SECONDS)
            assert stream.is_lost, "it was heard"

    peers.run(scenario())
    assert [reporter for _, reporter in notes] == [peers[1].peer_id]


def test_notes_of_one_member_take_no_place_of_those_of_others() -> None:
    register = AttemptRegister(max_waiting=2)

    def tell(peer: str, key: str) -> None:
        hello = Hello(purpose=Purpose.ABORT, key=key_of(key))
        register.hear_note(PeerId(peer), hello, failure("no", ()), is_stranger=False)

    tell("honest", "to come")
    for number in range(1000):
        tell("flooding", str(number))
    assert list(register.early_notes) == [
        (key_of("to come"), "honest"),
        (key_of("998"), "flooding"),
        (key_of("999"), "flooding"),
    ]


def test_notes_of_many_members_are_bounded_in_all_and_those_with_the_most_give_way() -> None:
    register = AttemptRegister(max_waiting=2)
    for number in range(300):
        for key in ("one", "another"):
            hello = Hello(purpose=Purpose.ABORT, key=key_of(f"{key} {number}"))
            register.hear_note(PeerId(f"member {number}"), hello, failure("no", ()), is_stranger=False)
    reporters = [reporter for _, reporter in register.early_notes]
    assert reporters == [f"member {number}" for number in range(44, 300)], "one of each"


def test_a_stranger_with_the_key_is_refused_by_its_identity(peers: Peers) -> None:
    async def intrude() -> AveragingError:
        inside = asyncio.create_task(peers[0].average("private", peers.weights(1, 1), torch.ones(100)))
        outside = peers[3].average("private", (*peers.weights(1), (peers[3].peer_id, 1)), torch.ones(100))
        with pytest.raises(AveragingError, match="not a member") as refused:
            await outside
        assert not inside.done()
        other = peers[1].average("private", peers.weights(1, 1), torch.ones(100) * 3)
        assert torch.equal((await other).vector, torch.full((100,), 2.0))
        await inside
        return refused.value

    assert peers.run(intrude()).suspects == (peers[0].peer_id,)


async def wait_for_traffic(peer: Peer, name: str, num_bytes: int) -> None:
    """Until the peer's attempt has received so much: then it is in the middle."""
    while True:
        attempt = peer.averager._attempts.running.get(key_of(name))
        if attempt is not None and attempt.traffic[1] >= num_bytes:
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize("blow", [kill, freeze])
def test_a_peer_that_dies_in_the_middle_is_named_by_all_survivors(blow: object) -> None:
    size = 6_000_000
    with Peers(4, part_bytes=1 << 16) as peers:
        victim = peers[1]
        tasks: list[asyncio.Task[Averaged]] = []

        async def strike() -> None:
            await wait_for_traffic(peers[0], "struck", size // 4)
            assert callable(blow)
            blow(victim)
            tasks[1].cancel()
            if blow is freeze:
                survivors = [peers[index].attempt("struck") for index in (0, 2, 3)]
                await peers.let_pass("struck", lambda: any(attempt._state.end._lost for attempt in survivors), dead=victim)

        vectors = vectors_of(4, size)

        async def everybody() -> list[Averaged | BaseException]:
            tasks[:] = [
                asyncio.create_task(
                    peers[index].average("struck", peers.weights(1, 1, 1, 1), vectors[index], timeout_seconds=1e4)
                )
                for index in range(4)
            ]
            await strike()
            return await asyncio.gather(*(tasks[index] for index in (0, 2, 3)), return_exceptions=True)

        try:
            survivors = peers.run(everybody())
            assert all(victim.peer_id in suspects_of(result) for result in survivors), survivors
            # kill: streams end at once. freeze: silence, then everybody is told by the first to notice.
            assert any("silent" in str(result) for result in survivors) == (blow is freeze)
            assert_still_works(peers, (0, 2, 3))
        finally:
            if blow is freeze:
                thaw(victim)


@pytest.mark.parametrize(
    ("blow", "words"), [(kill, "is gone"), pytest.param(freeze, "did not answer", marks=pytest.mark.heavy)]
)  # who notices a frozen daemon first, its own peer or another, is a matter of tenths of seconds
def test_a_peer_whose_own_daemon_died_or_stands_still_blames_nobody(blow: Callable[[Peer], None], words: str) -> None:
    async def lose_daemon(peers: Peers) -> BaseException:
        task = asyncio.create_task(peers[0].average("daemon", peers.weights(1, 1, 1), torch.ones(1000)))
        other = asyncio.create_task(peers[1].average("daemon", peers.weights(1, 1, 1), torch.ones(1000)))
        await wait_for_traffic(peers[0], "daemon", 1)
        blow(peers[0])
        result, other_result = await asyncio.gather(task, other, return_exceptions=True)
        assert peers[0].peer_id in suspects_of(other_result)
        assert isinstance(result, BaseException), result
        return result

    with Peers(3) as peers:  # thawed at the end
        result = peers.run(lose_daemon(peers))
    assert suspects_of(result) == ()
    assert f"own network daemon {words}" in str(result)


def test_a_daemon_that_answers_late_is_not_gone(peers: Peers) -> None:
    async def ask_a_slow_one() -> str | None:
        freeze(peers[0])
        asked = asyncio.create_task(peers[0].averager._local_fault())
        await asyncio.wait({asked}, timeout=0.1)
        assert not asked.done()
        thaw(peers[0])
        return await asked

    assert peers.run(ask_a_slow_one()) is None


def test_a_stream_that_was_kept_was_silent_by_right(peers: Peers) -> None:
    """Between two averages nobody says anything; the silence that counts begins with the second one."""

    async def average_after_a_long_round() -> list[Averaged]:
        def average(index: int) -> asyncio.Task[Averaged]:
            call = peers[index].average("again", peers.weights(1, 1), torch.ones(5_000))
            return asyncio.create_task(call)

        await peers[0].averager.settled()
        kept = tuple(peers[0].averager._context.pool._idle)
        assert kept
        for stream in kept:
            stream.last_received -= 10 * LIMITS.longest_stall_seconds
        early, loop = average(0), asyncio.get_running_loop()
        begun = loop.time()
        await peers.let_pass("again", lambda: loop.time() > begun + 5.0)  # it has looked for signs of life more than once
        assert not early.done()
        return [*await asyncio.gather(early, average(1))]

    peers.average("before", vectors_of(2, 5_000), (1, 1))
    assert len({result.finished.digest for result in peers.run(average_after_a_long_round())}) == 1


@pytest.mark.parametrize("way", ["cancel", "stop"])
def test_a_member_that_gives_up_notifies_the_others(peers: Peers, way: str) -> None:
    async def give_up() -> list[object]:
        tasks = [
            asyncio.create_task(peers[index].average("giving up", peers.weights(1, 1, 1, 1), torch.ones(1000)))
            for index in range(3)
        ]
        await wait_for_traffic(peers[0], "giving up", 1)
        if way == "cancel":
            tasks[0].cancel()
        else:
            await peers[0].averager.stop()
        return await asyncio.gather(*tasks, return_exceptions=True)

    gave_up, *others = peers.run(give_up())
    assert isinstance(gave_up, asyncio.CancelledError if way == "cancel" else AveragingError)
    to_leave_out = () if way == "cancel" else (peers[0].peer_id,)  # who only gave up this attempt takes part in the next
    assert [suspects_of(result) for result in others] == [to_leave_out] * 2
    # One that begins only now hears of it at once.
    (late,) = peers.average("giving up", [torch.ones(1000)] * 4, (1, 1, 1, 1), who=(3,))
    assert suspects_of(late) == to_leave_out
    assert not any("deadline" in str(result) for result in (*others, late)), "nobody waited for it"


def test_the_stream_of_a_note_is_closed_when_the_note_has_arrived(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on its way is lost with a stream; without the note the others would take the one that gives up for dead."""
    told: list[str] = []
    register = peers[1].averager._attempts
    hear, close = register.hear_note, FramedStream.close

    def hearing(*arguments: object, **more: object) -> None:
        told.append("heard")
        hear(*arguments, **more)  # type: ignore[arg-type]

    def closing(self: FramedStream) -> None:
        told.append("closed")
        close(self)

    monkeypatch.setattr(register, "hear_note", hearing)

    async def give_up() -> None:
        task = asyncio.create_task(peers[0].average("note", peers.weights(1, 1), torch.ones(100)))
        await until(lambda: peers[0].attempt("note") is not None)
        monkeypatch.setattr(FramedStream, "close", closing)
        task.cancel()
        await asyncio.wait({task})
        await peers[0].averager.settled()

    peers.run(give_up())
    assert told == ["heard", "closed"]


def test_a_used_key_is_not_served_again(peers: Peers) -> None:
    """Replay: a member opens a stream for an average that has ended."""
    peers.average("replayed", vectors_of(2, 1_000), (1, 1))
    peers.run(peers[0].averager.settled())  # until then it takes what comes for a second stream of the same member
    twin = Averager(Endpoint(peers[1].p2p), part_bytes=4096, limits=LIMITS, **signing(peers[1].p2p))

    async def replay() -> None:
        await peers[1].averager.stop()
        await twin.start()
        with pytest.raises(AveragingError, match="has ended"):
            await twin.average(
                unplanned(key=key_of("replayed"), weights=peers.weights(1, 1), timeout_seconds=TIMEOUT_SECONDS),
                torch.ones(1_000),
            )
        await twin.stop()
        await peers[1].averager.start()

    peers.run(replay())


def test_pace_governs_every_byte(peers: Peers) -> None:
    class Recorder:
        up_piece_bytes = down_piece_bytes = 50_000

        def __init__(self) -> None:
            self.sent: list[int] = []
            self.taken: list[int] = []

        async def sending(self, num_bytes: int) -> None:
            self.sent.append(num_bytes)

        def received(self, num_bytes: int) -> float:
            self.taken.append(num_bytes)
            return 0.0

    pace = Recorder()

    async def paced() -> Averaged:
        await peers[0].averager.stop()
        averager = Averager(Endpoint(peers[0].p2p, pace=pace), part_bytes=1 << 20, limits=LIMITS, **signing(peers[0].p2p))
        other = Averager(Endpoint(peers[1].p2p), part_bytes=1 << 20, limits=LIMITS, **signing(peers[1].p2p))
        await peers[1].averager.stop()
        await averager.start()
        await other.start()
        result, _ = await asyncio.gather(
            *(
                each.average(
                    unplanned(key=key_of("paced"), weights=peers.weights(1, 1), timeout_seconds=TIMEOUT_SECONDS),
                    torch.ones(700_000),
                )
                for each in (averager, other)
            )
        )
        await averager.stop()
        await other.stop()
        await peers[0].averager.start()
        await peers[1].averager.start()
        return result

    result = peers.run(paced())
    assert sum(pace.sent) == 4 * 700_000  # half of the vector to the other, and the mean of the other half
    assert max(pace.sent) <= pace.up_piece_bytes
    assert result.finished.bytes_sent <= 1.01 * sum(pace.sent)
    assert sum(pace.sent) <= sum(pace.taken) <= 1.01 * sum(pace.sent)  # as much comes back, in frames
