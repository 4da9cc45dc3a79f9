"""Messages in pieces: any honest size arrives whole, and a hostile sender gets no more room than the limits give."""

import asyncio
import hashlib
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.effects import Send
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.messages import MAX_MESSAGE_BYTES, MESSAGE_KINDS, Entries, PullEntries, Supply
from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.runtime.adapters.swarm_ports import NetworkMessenger
from adloco_p2p.storage.journal import MAX_RECORD_BYTES
from adloco_p2p.swarm.transport import gossip, pieces
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.gossip import GossipWire
from adloco_p2p.swarm.transport.pieces import (
    MAX_PAYLOAD_BYTES,
    MAX_PIECES,
    PIECE_SECONDS,
    Assembly,
    check_plain_bytes,
    deflated,
    in_pieces,
    inflate,
)
from adloco_p2p.v1 import gossip_pb2
from tests.swarm.clock import Clock
from tests.swarm.large_ledger import RUN, LargeSwarm
from tests.swarm.patience import PATIENCE_SECONDS
from tests.swarm.swarm_hosts import started_hosts

ALICE, BOB = PeerId("alice"), PeerId("bob")


def envelopes(payload: bytes, *, sender: str = "alice", kind: str = "Entries") -> list[gossip_pb2.Envelope]:
    cut = in_pieces(payload)
    return [
        gossip_pb2.Envelope(
            protocol_version=NEWEST,
            run=bytes.fromhex(RUN),
            sender=sender,
            kind=kind,
            payload=piece,
            num_pieces=len(cut),
            piece=number,
            digest=hashlib.sha256(payload).digest(),
        )
        for number, piece in enumerate(cut)
    ]


def wire(members=frozenset, **changes):
    async def on_message(*_):
        raise AssertionError("nobody reads here")

    options: dict[str, Any] = {"run": RUN, "kinds": MESSAGE_KINDS}
    options |= {"on_message": on_message, "on_refused": lambda *_: None}
    return GossipWire(Endpoint(SimpleNamespace(peer_id="me"), members=members), **(options | changes))


# --- honest ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_hosts", "num_instances"), [(300, 2), pytest.param(1000, 4, marks=pytest.mark.heavy)])
def test_a_joiner_gets_entries_of_many_hosts_over_the_real_wire(tmp_path, monkeypatch, num_hosts, num_instances):
    """Real names, real signatures, a daemon at each end; the joiner pulls, checks everything and has the ledger."""
    monkeypatch.setattr(pieces, "PIECE_SECONDS", PATIENCE_SECONDS)
    swarm = LargeSwarm(num_hosts, num_instances=num_instances)
    assert canonical.size(Entries(entries=tuple(swarm.entries[1:]))) > MAX_PAYLOAD_BYTES
    donor_name, joiner_name = list(swarm.identities)[:2]
    donor, joiner = swarm.agreement(donor_name, knows_all=True), swarm.agreement(joiner_name, knows_all=False)

    async def scenario():
        now = 1.0
        async with AsyncExitStack() as stack:
            there, here = await stack.enter_async_context(started_hosts(tmp_path, 2))
            refused = []
            ends = {}
            for host, agreement in ((there, donor), (here, joiner)):
                inbox: asyncio.Queue[Any] = asyncio.Queue()

                async def on_message(sender, message, inbox=inbox):
                    await inbox.put(message)

                end = GossipWire(
                    Endpoint(host.p2p),
                    run=RUN,
                    kinds=MESSAGE_KINDS,
                    on_message=on_message,
                    on_refused=lambda peer, reason: refused.append(reason),
                )
                await end.start()
                stack.push_async_callback(end.stop)
                pump = asyncio.create_task(end.pump())
                stack.callback(pump.cancel)
                ends[host.me] = (end, inbox, agreement)
            wire_here, inbox_here, _ = ends[here.me]
            wire_there, inbox_there, _ = ends[there.me]
            pull = PullEntries(locator=joiner.ledger.locator())
            while joiner.ledger.head != donor.ledger.head:
                assert await wire_here.send(there.me, pull)
                (answer,) = donor.receive(joiner_name, await inbox_there.get(), now)
                assert isinstance(answer, Send)
                assert await wire_there.send(here.me, answer.message), refused
                outcomes = joiner.receive(donor_name, await inbox_here.get(), now)
                pulls = [o.message for o in outcomes if isinstance(o, Send) and isinstance(o.message, PullEntries)]
                pull, now = pulls[-1], now + 1.5
            assert refused == []

    asyncio.run(scenario())
    assert joiner.ledger.digests == swarm.ledger.digests


def test_entries_that_were_decoded_have_the_digests_of_their_bytes_and_no_second_spelling():
    payload = canonical.encode(Entries(entries=tuple(LargeSwarm(3, num_instances=2).entries)))
    for entry in decode(Entries, payload, max_bytes=len(payload)).entries:
        for part in (entry.plan, entry.value, *entry.reports):
            assert (canonical.digest_once(part), canonical.size_once(part)) == (canonical.digest(part), canonical.size(part))
    for other in (payload.replace(b",", b", ", 1), payload.replace(b'"absent":[]', b'"absent": []', 1)):
        with pytest.raises(RemoteProtocolError, match="not in canonical form"):
            decode(Entries, other, max_bytes=len(other))


def test_all_reports_of_many_hosts_fit_into_one_supply():
    reports = LargeSwarm(400, num_instances=2).entries[1].reports  # most of them on the bench, so short
    supply = Supply(parent=RUN, reports=reports)
    there = wire(members=lambda: frozenset({"me"}))
    assert [there.accept("me", envelope) for envelope in wire()._envelopes(supply)] == [None, None]
    assert asyncio.run(there._inbox.get()) == ("me", supply)


def test_a_payload_is_cut_into_full_pieces_and_one_rest():
    assert [len(piece) for piece in in_pieces(b"x" * (2 * MAX_PAYLOAD_BYTES + 1))] == [MAX_PAYLOAD_BYTES] * 2 + [1]
    assert in_pieces(b"x" * MAX_PAYLOAD_BYTES) == [b"x" * MAX_PAYLOAD_BYTES]
    assert in_pieces(b"") == [b""]


def test_what_was_deflated_is_whole_again_and_what_would_not_shrink_is_sent_as_it_is():
    for plain in (b"a", b"a" * MAX_PAYLOAD_BYTES, b"".join(hashlib.sha256(bytes([i])).digest() for i in range(256)), b""):
        short = deflated(plain)
        envelope = gossip_pb2.Envelope(payload=short or plain, plain_bytes=len(plain) if short else 0)
        assert len(envelope.payload) <= len(plain)
        check_plain_bytes(envelope)
        inflate(envelope)
        assert (envelope.payload, envelope.plain_bytes) == (plain, 0)


def test_an_entry_of_many_hosts_travels_in_a_third_of_its_bytes():
    entry = LargeSwarm(100, num_instances=1).entries[1]
    sent = wire()._envelopes(Entries(entries=(entry,)))
    assert 3 * sum(envelope.ByteSize() for envelope in sent) < canonical.size(entry)


def test_a_sender_paces_pieces_by_what_their_receiver_counts(monkeypatch):
    """A message that deflates to nearly nothing, and has three times the bytes that its receiver takes at once."""
    monkeypatch.setattr(gossip, "BYTES_BURST", 4.5 * MAX_PAYLOAD_BYTES)
    monkeypatch.setattr(gossip, "SENT_PLAIN_BYTES_BURST", 2.0 * MAX_PAYLOAD_BYTES)
    monkeypatch.setattr(gossip, "decode", lambda kind, data, **_: data)
    monkeypatch.setattr(pieces, "PIECE_SECONDS", PATIENCE_SECONDS)
    sent = envelopes(b"a" * (12 * MAX_PAYLOAD_BYTES))
    for envelope in sent:
        envelope.payload, envelope.plain_bytes = deflated(envelope.payload), len(envelope.payload)
    receiver, answers = wire(), []

    class Sender(GossipWire):
        async def _send_envelope(self, peer, envelope):
            answers.append(receiver.accept(ALICE, envelope))
            return answers[-1] is None

    nothing: Any = None
    end = Endpoint(SimpleNamespace(peer_id=ALICE))
    sender = Sender(end, run=RUN, kinds=MESSAGE_KINDS, on_message=nothing, on_refused=nothing)
    receiver._to_remote.try_take(ALICE, 1.0, 1.0)  # it asked for the message
    assert asyncio.run(sender._send_envelopes(BOB, sent)), answers
    assert answers == [None] * 12


def test_a_message_that_nobody_would_take_is_logged_and_not_sent(caplog, monkeypatch):
    monkeypatch.setattr(gossip, "MAX_MESSAGE_BYTES", 100)

    async def scenario():
        failures: list[BaseException] = []
        lone = wire()
        messenger = NetworkMessenger(lone, roster=lambda: [ALICE], fail=failures.append)
        messenger.send(ALICE, PullEntries(locator=(RUN,) * 4))
        messenger.broadcast(PullEntries(locator=(RUN,) * 4))
        await messenger.drain()
        assert failures == []

    asyncio.run(scenario())
    assert caplog.text.count("PullEntries of") == caplog.text.count("too large") == 2


def test_what_fails_in_a_sending_task_ends_the_node():
    async def scenario():
        failures: list[BaseException] = []
        messenger = NetworkMessenger(wire(), roster=list, fail=failures.append)
        unknown: Any = object()  # of no kind that the wire knows
        messenger.send(ALICE, unknown)
        await messenger.drain()
        await asyncio.sleep(0)
        assert [type(error) for error in failures] == [AssertionError]

    asyncio.run(scenario())


# --- hostile ---------------------------------------------------------------------------------------------------------

LARGE = bytes(range(256)) * 4096  # four pieces


def test_pieces_of_two_senders_do_not_mix():
    assembly = Assembly(clock=Clock())
    other = LARGE[::-1]
    for one, two in list(zip(envelopes(LARGE), envelopes(other, sender="bob"), strict=True))[:-1]:
        assert assembly.take(ALICE, one, is_member=True) is None
        assert assembly.take(BOB, two, is_member=True) is None
    assert assembly.take(ALICE, envelopes(LARGE)[-1], is_member=True) == LARGE
    assert assembly.take(BOB, envelopes(other)[-1], is_member=True) == other
    assert (len(assembly), assembly.num_bytes) == (0, 0)


def changed(**fields):
    envelope = envelopes(LARGE)[1]
    envelope.MergeFrom(gossip_pb2.Envelope(**fields))
    return envelope


@pytest.mark.parametrize(
    "second",
    [
        envelopes(LARGE)[2],
        envelopes(LARGE[::-1])[1],
        envelopes(LARGE, kind="Supply")[1],
        changed(num_pieces=5),
        changed(num_pieces=MAX_PIECES + 1),
        changed(payload=b"short"),
        changed(payload=b"x" * (MAX_PAYLOAD_BYTES + 1)),
        changed(digest=b"short"),
        changed(piece=4),
        changed(num_pieces=1),
    ],
)
def test_what_does_not_follow_is_refused_and_frees_the_room(second):
    assembly = Assembly(clock=Clock())
    assert assembly.take(ALICE, envelopes(LARGE)[0], is_member=True) is None
    with pytest.raises(RemoteProtocolError):
        assembly.take(ALICE, second, is_member=True)
    assert (len(assembly), assembly.num_bytes) == (0, 0)


def test_other_bytes_than_the_digest_names_are_refused():
    assembly, sent = Assembly(clock=Clock()), envelopes(LARGE)
    sent[-1].payload = bytes(len(sent[-1].payload))
    for envelope in sent[:-1]:
        assembly.take(ALICE, envelope, is_member=True)
    with pytest.raises(RemoteProtocolError, match="not those"):
        assembly.take(ALICE, sent[-1], is_member=True)


def test_a_sender_has_one_message_in_assembly_and_it_ends_when_the_next_piece_is_overdue():
    clock = Clock()
    assembly = Assembly(clock=clock)
    for number in range(50):
        assembly.take(ALICE, envelopes(LARGE[number:] + LARGE[:number])[0], is_member=True)
        assert (len(assembly), assembly.num_bytes) == (1, MAX_PAYLOAD_BYTES)
    clock.now += PIECE_SECONDS + 1
    assembly.drop_stale()
    assert (len(assembly), assembly.num_bytes) == (0, 0)
    with pytest.raises(RemoteProtocolError, match="does not follow"):
        assembly.take(ALICE, envelopes(LARGE)[1], is_member=True)


@pytest.mark.parametrize(
    ("payload", "plain_bytes", "words"),
    [
        (deflated(b"a" * 1000), 999, "does not inflate to the 999"),
        (deflated(b"a" * 1000), 1001, "does not inflate to the 1001"),
        (deflated(b"a" * 1000)[:-1], 1000, "does not inflate"),
        (deflated(b"a" * 1000) + b"b", 1000, "does not inflate"),
        (deflated(b"a" * MAX_PAYLOAD_BYTES * 2), 1, "does not inflate"),
        (deflated(b"a" * MAX_PAYLOAD_BYTES * 2), MAX_PAYLOAD_BYTES + 1, "at most"),
        (b"a" * (MAX_PAYLOAD_BYTES + 1), 0, "at most"),
        (b"a" * 1000, 1000, "cannot be inflated"),
        (b"a", MAX_PAYLOAD_BYTES, "1 bytes do not inflate to the"),
    ],
)
def test_a_payload_that_differs_from_its_envelope_is_refused(payload, plain_bytes, words):
    def take(envelope: gossip_pb2.Envelope) -> None:
        check_plain_bytes(envelope)
        inflate(envelope)

    with pytest.raises(RemoteProtocolError, match=words):
        take(gossip_pb2.Envelope(payload=payload, plain_bytes=plain_bytes))


def test_what_a_payload_inflates_to_is_paid_for_before(monkeypatch):
    monkeypatch.setattr(gossip, "BYTES_BURST", 2.5 * MAX_PAYLOAD_BYTES)
    monkeypatch.setattr(gossip, "BYTES_PER_SECOND", 1e-9)
    (bomb,) = envelopes(deflated(b"a" * MAX_PAYLOAD_BYTES), kind="Ping")
    bomb.plain_bytes, bomb.num_pieces = MAX_PAYLOAD_BYTES, 0
    receiver = wire()
    assert [receiver.accept(ALICE, bomb).split(":")[0] for _ in range(3)] == ["Ping", "Ping", "too many messages"]


def test_a_stranger_that_names_more_bytes_than_it_sent_does_not_take_them_from_the_others(monkeypatch):
    monkeypatch.setattr(gossip, "STRANGER_BYTES_PER_SECOND", 1e-9)
    receiver = wire(members=lambda: frozenset({"me"}), stranger_kinds={"Ping": 1.0})
    (lie,) = envelopes(b"a", sender="eve", kind="Ping")
    lie.plain_bytes, lie.num_pieces = MAX_PAYLOAD_BYTES, 0
    assert "1 bytes do not inflate to the" in receiver.accept("eve", lie)
    lie.plain_bytes = MAX_PAYLOAD_BYTES + 1
    assert "at most" in receiver.accept("eve", lie)
    _, shared = receiver._from_strangers
    assert shared.has(gossip.STRANGER_BYTES_BURST)


def test_strangers_share_a_bound_and_give_way_to_members(monkeypatch):
    monkeypatch.setattr(pieces, "MAX_STRANGERS_BYTES", 4 * MAX_PAYLOAD_BYTES)
    monkeypatch.setattr(pieces, "MAX_ASSEMBLED_BYTES", 6 * MAX_PAYLOAD_BYTES)
    assembly, first = Assembly(clock=Clock()), envelopes(LARGE)[0]
    refused = 0
    for number in range(100):
        try:
            assembly.take(PeerId(f"stranger{number}"), first, is_member=False)
        except RemoteProtocolError:
            refused += 1
    assert (refused, len(assembly), assembly.num_bytes) == (96, 4, 4 * MAX_PAYLOAD_BYTES)
    for number in range(6):
        assert assembly.take(PeerId(f"member{number}"), first, is_member=True) is None
        assert assembly.num_bytes <= 6 * MAX_PAYLOAD_BYTES
    with pytest.raises(RemoteProtocolError, match="in assembly"):
        assembly.take(PeerId("member6"), first, is_member=True)
    assert [peer.startswith("member") for peer in assembly._partial] == [True] * 6


def test_members_that_let_large_messages_trickle_keep_out_no_other(monkeypatch):
    monkeypatch.setattr(pieces, "MAX_ASSEMBLED_BYTES", 6 * MAX_PAYLOAD_BYTES)
    assembly, sent = Assembly(clock=Clock()), envelopes(LARGE)
    for liar in (BOB, PeerId("carol")):
        for piece in sent[:3]:
            assembly.take(liar, piece, is_member=True)
    taken = [assembly.take(ALICE, piece, is_member=True) for piece in sent]
    assert taken == [None, None, None, LARGE]
    assert assembly.num_bytes <= 6 * MAX_PAYLOAD_BYTES


def test_a_stranger_that_nobody_asked_sends_whole_messages_only():
    async def scenario():
        lone = wire(members=lambda: frozenset({"member"}))
        assert "from members" in lone.accept("alice", envelopes(LARGE)[0])
        assert lone.accept("member", envelopes(LARGE, sender="member")[0]) is None
        lone._to_remote.try_take(ALICE, 1.0, 1.0)  # as any message to it does
        assert lone.accept("alice", envelopes(LARGE)[0]) is None

    asyncio.run(scenario())


def test_the_longest_message_that_is_accepted_holds_the_longest_entry_of_the_journal():
    assert MAX_RECORD_BYTES == MAX_MESSAGE_BYTES <= MAX_PIECES * MAX_PAYLOAD_BYTES
    entry = LargeSwarm(300, num_instances=2).entries[1]
    assert decode(LedgerEntry, canonical.encode(entry), max_bytes=MAX_RECORD_BYTES) == entry
