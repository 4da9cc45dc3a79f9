import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.lineage import ProbeVerdict
from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.errors import SwarmError
from adloco_p2p.swarm.discovery.manifest import SignedManifest, fetch_manifest
from adloco_p2p.swarm.transport import gossip, inbox
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.gossip import MESSAGE_BURST, STRANGER_MESSAGE_BURST, AdlocoGossip, GossipWire
from adloco_p2p.swarm.transport.inbox import MAX_STRANGER_MESSAGES, MEMBER_MESSAGES
from adloco_p2p.swarm.transport.pieces import MAX_PAYLOAD_BYTES
from adloco_p2p.v1 import control_pb2, gossip_pb2
from tests.swarm.swarm_hosts import started_hosts

KINDS = {"report": Report, "verdict": ProbeVerdict}
RUN = RunConfig().digest
PLAN = Digest("00" * 32)
REPOSITORY = Path(__file__).resolve().parents[3]


def _report(peer, round_number=0):
    capacity = Capacity(samples_per_second=1.5, micro_batch_limit=8, max_instances=2)
    return Report(peer=peer, round=round_number, plan=PLAN, capacity=capacity)


class Ears:
    """What a wire heard: messages, and refusals of what it sent."""

    def __init__(self):
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.refusals = []

    async def on_message(self, sender, message):
        await self.messages.put((sender, message))

    def on_refused(self, peer, reason):
        self.refusals.append((peer, reason))


@asynccontextmanager
async def wires(workdir, *runs, manifest=None):
    """One started and pumping wire per run digest, with its host and ears."""
    async with AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(started_hosts(workdir, len(runs)))
        built = []
        for host, run in zip(hosts, runs, strict=True):
            ears = Ears()
            wire = GossipWire(
                Endpoint(host.p2p),
                run=run,
                kinds=KINDS,
                on_message=ears.on_message,
                on_refused=ears.on_refused,
                manifest=manifest.to_proto() if manifest is not None else None,
            )
            await wire.start()
            stack.push_async_callback(wire.stop)
            pump = asyncio.create_task(wire.pump())
            stack.callback(pump.cancel)
            built.append((host, wire, ears))
        yield built


def test_messages_arrive_in_order_with_their_sender(tmp_path):
    async def scenario():
        async with wires(tmp_path, RUN, RUN, RUN) as ((a, wire_a, ears_a), (b, _wire_b, ears_b), (c, wire_c, ears_c)):
            assert await wire_a.send(b.me, _report(a.me, 1))
            verdict = ProbeVerdict(
                sources=(InstanceId(0), InstanceId(1)), target=InstanceId(0), source_losses=(1.0, 2.5), merged_loss=1.25
            )
            assert await wire_a.send(b.me, verdict)
            assert await ears_b.messages.get() == (a.me, _report(a.me, 1))
            assert await ears_b.messages.get() == (a.me, verdict)
            assert await wire_c.broadcast([a.me, b.me, c.me, a.me], _report(c.me)) == 2
            assert await ears_a.messages.get() == (c.me, _report(c.me))
            assert await ears_b.messages.get() == (c.me, _report(c.me))
            assert ears_c.messages.empty()
            assert ears_a.refusals == ears_b.refusals == ears_c.refusals == []

    asyncio.run(scenario())


def test_another_run_is_refused_with_an_answer(tmp_path):
    async def scenario():
        other = Digest("cd" * 32)
        async with wires(tmp_path, RUN, other) as ((_a, wire_a, ears_a), (b, _wire_b, ears_b)):
            assert not await wire_a.send(b.me, _report(b.me))
            ((peer, reason),) = ears_a.refusals
            assert peer == b.me
            assert RUN in reason
            assert other in reason
            assert ears_b.messages.empty()

    asyncio.run(scenario())


def test_another_protocol_version_is_refused_with_an_answer(tmp_path):
    async def scenario():
        async with wires(tmp_path, RUN, RUN) as ((_a, wire_a, ears_a), (b, _wire_b, ears_b)):
            (envelope,) = wire_a._envelopes(_report(b.me))
            envelope.protocol_version = NEWEST + 1
            assert not await wire_a._send_envelope(b.me, envelope)
            ((_, reason),) = ears_a.refusals
            assert f"protocol {NEWEST + 1} is not read here" in reason
            assert ears_b.messages.empty()

    asyncio.run(scenario())


def test_a_lost_peer_is_no_error(tmp_path):
    async def scenario():
        async with wires(tmp_path, RUN, RUN) as ((_, wire_a, ears_a), (b, _wire_b, _ears_b)):
            await b.stop()
            assert not await wire_a.send(b.me, _report(b.me))
            assert await wire_a.broadcast([b.me], _report(b.me)) == 0
            assert ears_a.refusals == []

    asyncio.run(scenario())


def _lone_wire(members=frozenset, **changes):
    ears = Ears()
    options: dict[str, Any] = {"run": RUN, "kinds": KINDS}
    options |= {"on_message": ears.on_message, "on_refused": ears.on_refused}
    return GossipWire(Endpoint(SimpleNamespace(peer_id="me"), members=members), **(options | changes))


def _envelope(**changes):
    fields = {
        "protocol_version": NEWEST,
        "run": bytes.fromhex(RUN),
        "sender": "alice",
        "kind": "report",
        "payload": canonical.encode(_report("alice")),
    }
    return gossip_pb2.Envelope(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sender": "bob"}, "another sender"),
        ({"sender": ""}, "another sender"),
        ({"run": b""}, "run"),
        ({"kind": "verdict"}, "ProbeVerdict"),
        ({"kind": "unheard"}, "unknown kind"),
        ({"payload": b""}, "Report"),
        ({"payload": canonical.encode(replace(_report("alice"), plan=Digest("zz")))}, "plan"),
        ({"payload": canonical.encode(replace(_report("alice"), round=1 << 63))}, "round"),
        ({"payload": b"x" * (MAX_PAYLOAD_BYTES + 1)}, "at most"),
        ({"protocol_version": 0}, "protocol 0 is not read here"),
    ],
)
def test_what_is_not_well_formed_is_refused_with_a_reason(changes, words):
    wire = _lone_wire()
    reason = wire.accept("alice", _envelope(**changes))
    assert words in reason
    assert len(wire._inbox) == 0
    assert wire.accept("alice", _envelope()) is None


def test_a_remote_peer_that_sends_too_much_is_refused_and_others_are_not(monkeypatch):
    monkeypatch.setattr(inbox, "MEMBER_MESSAGES", 1000)
    monkeypatch.setattr(gossip, "MESSAGES_PER_SECOND", 1e-3)  # what a burst leaves does not depend on this machine's speed
    monkeypatch.setattr(gossip, "BYTES_PER_SECOND", 1e-3)
    wire = _lone_wire()
    answers = [wire.accept("alice", _envelope()) for _ in range(int(MESSAGE_BURST) + 50)]
    assert answers[: int(MESSAGE_BURST)] == [None] * int(MESSAGE_BURST)
    assert answers[-1] == "too many messages"
    assert wire.accept("bob", _envelope(sender="bob")) is None
    large = _envelope(sender="carol", payload=b"x" * MAX_PAYLOAD_BYTES)
    answers = [wire.accept("carol", large) for _ in range(80)]
    assert answers[-1] == "too many messages"


@pytest.mark.parametrize("size", [1, 100 << 10])
def test_all_members_share_one_budget_beyond_a_share_of_their_own(size, monkeypatch):
    for name in ("OWN_MESSAGES", "OWN_BYTES", "COMMON_MESSAGES", "COMMON_BYTES"):
        monkeypatch.setattr(gossip, f"{name}_PER_SECOND", 1e-3)
    read = []
    monkeypatch.setattr(gossip, "decode", lambda kind, data, **_: read.append(len(data)))
    flooding = [f"mallory{n}" for n in range(20)]
    wire = _lone_wire(members=lambda: {"me", "alice", *flooding})
    monkeypatch.setattr(wire._inbox, "has_room", lambda *_, **__: True)
    answers = [wire.accept(peer, _envelope(sender=peer, payload=b"x" * size)) for peer in flooding for _ in range(400)]
    assert "too many messages of all members together" in answers
    num_messages, num_bytes = 20 * 100 + 800, (20 * 4 + 32) << 20
    assert len(read) <= num_messages and sum(read) <= num_bytes
    assert len(read) > 0.9 * num_messages or sum(read) > 0.9 * num_bytes
    assert wire.accept("alice", _envelope()) is None


def test_a_remote_peer_that_asks_too_much_is_not_answered_and_others_are(tmp_path, monkeypatch):
    async def scenario():
        name = "".join(map(chr, range(60, 112)))  # deflates as badly as a key
        size = _lone_wire()._envelopes(_report(name))[0].ByteSize()
        monkeypatch.setattr(gossip, "SENT_BYTES_BURST", 2.5 * size)
        monkeypatch.setattr(gossip, "SENT_BYTES_PER_SECOND", 1e-3)
        async with wires(tmp_path, RUN, RUN, RUN) as ((_a, wire_a, _ears_a), (b, _wire_b, ears_b), (c, _wire_c, ears_c)):
            assert [await wire_a.send(b.me, _report(b.me)) for _ in range(4)] == [True, True, False, False]
            assert await wire_a.send(c.me, _report(c.me))
            assert [await ears_b.messages.get() for _ in range(2)] and ears_b.messages.empty()
            assert await ears_c.messages.get()

    asyncio.run(scenario())


def test_a_flooding_member_fills_its_own_quota_and_waits_its_turn():
    async def scenario():
        members = {"me", "alice", "bob"}
        wire = _lone_wire(members=lambda: members)
        answers = [wire.accept("alice", _envelope()) for _ in range(MEMBER_MESSAGES + 1)]
        assert answers == [None] * MEMBER_MESSAGES + ["the inbox is full"]
        assert wire.accept("bob", _envelope(sender="bob")) is None
        assert [(await wire._inbox.get())[0] for _ in range(3)] == ["alice", "bob", "alice"]

    asyncio.run(scenario())


def test_while_the_core_is_busy_messages_wait_in_the_inbox_only():
    is_free, taken = asyncio.Event(), []

    async def on_message(sender, message):
        taken.append(sender)
        await is_free.wait()

    async def scenario():
        wire = _lone_wire(on_message=on_message)
        pump = asyncio.create_task(wire.pump())
        for n in range(2000):
            wire.accept(f"peer{n % 40}", _envelope(sender=f"peer{n % 40}"))
            await asyncio.sleep(0)
        assert len(taken) == 1 and len(wire._inbox) == inbox.MAX_MESSAGES
        assert wire.accept("late", _envelope(sender="late")) == "the inbox is full"
        is_free.set()
        for _ in range(2 * inbox.MAX_MESSAGES):
            await asyncio.sleep(0)
        assert len(wire._inbox) == 0
        pump.cancel()

    asyncio.run(scenario())


def _wire_of_members(*, price=1.0):
    return _lone_wire(members=lambda: {"me", "alice"}, stranger_kinds={"verdict": price})


def _verdict_of(sender):
    verdict = ProbeVerdict(
        sources=(InstanceId(0), InstanceId(1)), target=InstanceId(0), source_losses=(1.0, 2.5), merged_loss=1.25
    )
    return _envelope(sender=sender, kind="verdict", payload=canonical.encode(verdict))


def test_a_stranger_may_send_only_what_strangers_have_to(monkeypatch):
    wire = _wire_of_members()
    assert wire.accept("eve", _verdict_of("eve")) is None
    monkeypatch.setattr(gossip, "decode", lambda *_, **__: pytest.fail("decoded for a stranger"))
    assert "only members send report" in wire.accept("eve", _envelope(sender="eve"))


def test_all_strangers_share_one_budget_which_is_taken_before_the_work(monkeypatch):
    monkeypatch.setattr(gossip, "STRANGER_MESSAGES_PER_SECOND", 1e-3)
    wire = _wire_of_members()
    decoded = []
    monkeypatch.setattr(gossip, "decode", lambda kind, data, **_: decoded.append(data))
    monkeypatch.setattr(inbox, "MAX_STRANGER_MESSAGES", 10_000)
    wire._inbox = inbox.Inbox()
    answers = [wire.accept(f"eve{n}", _verdict_of(f"eve{n}")) for n in range(1000)]
    assert len(decoded) == STRANGER_MESSAGE_BURST
    assert answers[-1] == "too many messages of peers without a seat"
    assert wire.accept("alice", _verdict_of("alice")) is None


def test_what_is_not_sent_to_a_stranger_costs_its_own_budget_nothing(monkeypatch):
    monkeypatch.setattr(gossip, "STRANGER_SENT_BYTES_PER_SECOND", 1e-3)
    wire = _wire_of_members()
    assert wire._to_strangers.try_take(gossip.STRANGER_SENT_BYTES_BURST - 1)
    assert not asyncio.run(wire._send_envelopes("stranger", wire._envelopes(_report("stranger"))))
    own, own_plain = wire._to_remote._of("stranger")
    assert own.has(gossip.SENT_BYTES_BURST) and own_plain.has(gossip.SENT_PLAIN_BYTES_BURST)


def test_strangers_take_no_room_from_members_and_come_after_them():
    async def scenario():
        wire = _wire_of_members()
        answers = [wire.accept(f"eve{n}", _verdict_of(f"eve{n}")) for n in range(MAX_STRANGER_MESSAGES + 1)]
        assert answers[-2:] == [None, "the inbox is full"]
        assert wire.accept("alice", _envelope()) is None
        assert (await wire._inbox.get())[0] == "alice"

    asyncio.run(scenario())


def test_a_peer_without_a_seat_takes_everybody_for_a_member():
    wire = _lone_wire(members=lambda: {"bob"}, stranger_kinds={})
    assert wire.accept("alice", _envelope()) is None


def test_a_dear_message_costs_more_of_the_budget(monkeypatch):
    monkeypatch.setattr(gossip, "STRANGER_MESSAGES_PER_SECOND", 1e-3)
    wire = _wire_of_members(price=STRANGER_MESSAGE_BURST / 4)
    answers = [wire.accept(f"eve{n}", _verdict_of(f"eve{n}")) for n in range(6)]
    assert answers == [None] * 4 + ["too many messages of peers without a seat"] * 2


def test_strangers_get_no_work_done_whose_answer_could_not_be_sent(monkeypatch):
    monkeypatch.setattr(gossip, "STRANGER_SENT_BYTES_PER_SECOND", 1e-3)
    wire = _wire_of_members()
    assert wire._to_strangers.try_take(gossip.STRANGER_SENT_BYTES_BURST - 1)
    assert wire.accept("eve", _verdict_of("eve")) == "too many messages of peers without a seat"
    assert wire.accept("alice", _verdict_of("alice")) is None


def test_a_message_that_is_too_large_for_the_rate_does_not_cost_a_message():
    rates = gossip._Rates((1e-6, 2), (1e-6, 100))
    assert not rates.try_take(PeerId("alice"), 1, 101)
    assert [rates.try_take(PeerId("alice"), 1, 1) for _ in range(3)] == [True, True, False]


def test_the_rates_of_strangers_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(gossip, "MAX_REMOTES", 3)
    wire = _lone_wire()
    for n in range(10):
        wire.accept(f"peer{n}", _envelope(sender="x"))
    assert list(wire._from_remote._buckets) == ["peer7", "peer8", "peer9"]


def test_an_error_in_the_core_is_not_swallowed():
    async def on_message(*_):
        raise ZeroDivisionError

    async def scenario():
        wire = _lone_wire(on_message=on_message)
        assert wire.accept("alice", _envelope()) is None
        with pytest.raises(ZeroDivisionError):
            await wire.pump()

    asyncio.run(scenario())


def test_the_manifest_is_fetched_from_whoever_has_it(tmp_path):
    async def scenario():
        async with wires(tmp_path, RUN, RUN) as ((a, _, _), (b, wire_b, _)):
            config = RunConfig(author=b.me)
            wire_b.run = config.digest
            with pytest.raises(SwarmError, match=rf"{b.me}: does not hold it"):
                await fetch_manifest(a.p2p, [b.me], config.digest)
            manifest = SignedManifest.sign(config, b.identity)
            wire_b.manifest = manifest.to_proto()
            assert await fetch_manifest(a.p2p, [b.me], config.digest) == manifest
            with pytest.raises(SwarmError, match="does not hold it"):
                await fetch_manifest(a.p2p, [b.me], Digest("cd" * 32))
            with pytest.raises(SwarmError, match="no peer is known"):
                await fetch_manifest(a.p2p, [], RUN)
            wire_b.manifest = SignedManifest.sign(RunConfig(seed=1, author=b.me), b.identity).to_proto()
            with pytest.raises(SwarmError, match="digest"):
                await fetch_manifest(a.p2p, [b.me], config.digest)

    asyncio.run(scenario())


@pytest.mark.parametrize("asker", ["alice", "eve"])
def test_the_manifest_is_counted_and_paid_for_like_gossip(asker, monkeypatch):
    monkeypatch.setattr(gossip, "SENT_BYTES_PER_SECOND", 1e-3)
    manifest = gossip_pb2.SignedManifest(manifest=b"x" * 60_000)
    wire = _lone_wire(members=lambda: {"me", "alice"}, manifest=manifest)
    request = gossip_pb2.ManifestRequest(run=bytes.fromhex(RUN))
    size = gossip_pb2.ManifestReply(manifest=manifest).ByteSize()
    replies = [wire.manifest_for(asker, request) for _ in range(200)]
    num_sent = sum(reply.HasField("manifest") for reply in replies)
    assert num_sent == gossip.SENT_BYTES_BURST // size and replies[-1] == gossip_pb2.ManifestReply()
    assert wire._meter.sent_bytes == num_sent * size
    assert wire._meter.received_bytes == len(replies) * request.ByteSize()
    assert wire.manifest_for("bob", request).HasField("manifest"), "another asker has a budget of its own"


def test_all_strangers_share_the_bytes_of_manifests(monkeypatch):
    monkeypatch.setattr(gossip, "STRANGER_SENT_BYTES_PER_SECOND", 1e-3)
    manifest = gossip_pb2.SignedManifest(manifest=b"x" * 60_000)
    wire = _lone_wire(members=lambda: {"me", "alice"}, manifest=manifest)
    request = gossip_pb2.ManifestRequest(run=bytes.fromhex(RUN))
    replies = [wire.manifest_for(f"eve{number}", request) for number in range(390)]
    num_sent = sum(reply.HasField("manifest") for reply in replies)
    assert 0 < num_sent * replies[0].ByteSize() <= gossip.STRANGER_SENT_BYTES_BURST
    assert replies[-1] == gossip_pb2.ManifestReply()
    assert wire.manifest_for("alice", request).HasField("manifest")


def test_the_wire_names_are_pinned():
    assert AdlocoGossip.__name__ == "AdlocoGossip"
    AdlocoGossip._collect_rpc_handlers()
    names = {AdlocoGossip._get_handle_name(None, handler.method_name) for handler in AdlocoGossip._rpc_handlers}
    assert names == {"AdlocoGossip.rpc_gossip", "AdlocoGossip.rpc_manifest"}


@pytest.mark.parametrize("module", [gossip_pb2, control_pb2], ids=["gossip", "control"])
def test_the_generated_code_is_fresh(module, tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc")
    result = tmp_path / "descriptors"
    source = module.DESCRIPTOR.name
    assert protoc.main(["protoc", f"-I{REPOSITORY / 'proto'}", f"--descriptor_set_out={result}", source]) == 0
    (fresh,) = descriptor_pb2.FileDescriptorSet.FromString(result.read_bytes()).file
    committed = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for descriptor in (fresh, committed):
        for message in descriptor.message_type:
            for field in message.field:
                field.ClearField("json_name")  # protoc writes it into one of the two forms only
    assert committed == fresh
