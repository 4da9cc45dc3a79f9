import asyncio
import dataclasses
import time

import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.protocol import NEWEST, OLDEST
from adloco_p2p.core.model.scalars import MAX_LABEL_CHARS, Digest, PeerId
from adloco_p2p.decode import decode
from adloco_p2p.errors import ProtocolOutgrown, RemoteProtocolError
from adloco_p2p.swarm.discovery.manifest import SignedManifest
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p import identity
from adloco_p2p.swarm.p2p.dht_records import MAX_DHT_RECORD_BYTES, PeerRecord, RunRecord
from adloco_p2p.swarm.p2p.identity import Identity
from adloco_p2p.v1 import gossip_pb2
from tests.swarm.swarm_hosts import started_hosts

RUN, OTHER_RUN = Digest("ab" * 32), Digest("cd" * 32)


@pytest.fixture
def author(tmp_path):
    return Identity.load_or_create(tmp_path / "author.key")


def test_runs_and_peers_are_found(tmp_path):
    async def scenario():
        async with started_hosts(tmp_path, 3) as hosts:
            first, second, third = (Discovery(host.dht, host.identity) for host in hosts)
            assert await third.list_runs() == ()
            assert await third.find_peers(RUN) == ()
            assert await first.announce_run(RUN, name="one", author=hosts[0].me, num_peers=1)
            assert await second.announce_run(OTHER_RUN, name="other", author=hosts[1].me, num_peers=5)
            assert [(run.run, run.name, run.num_peers) for run in await third.list_runs()] == [
                (OTHER_RUN, "other", 5),
                (RUN, "one", 1),
            ]
            await first.announce_peer(RUN, await hosts[0].addresses())
            await second.announce_peer(RUN, [])  # a client
            await third.announce_peer(RUN, await hosts[2].addresses())
            found = {record.peer: record.addresses for record in await third.find_peers(RUN)}
            assert found == {hosts[0].me: await hosts[0].addresses(), hosts[1].me: ()}
            assert await third.find_peers(OTHER_RUN) == ()

    asyncio.run(scenario())


def test_a_record_ends_unless_it_is_renewed(tmp_path):
    async def scenario():
        now = [1e9]  # long ago: the DHT itself would drop a record that its own clock holds for dead
        async with started_hosts(tmp_path, 1) as (host,):
            peer = Discovery(host.dht, Identity.load_or_create(tmp_path / "peer.key"))
            await peer.announce_peer(RUN, [], lifetime_seconds=250.0)
            (record,) = await Discovery(host.dht, host.identity).find_peers(RUN)
            reader = Discovery(host.dht, host.identity, wall_clock=lambda: now[0])
            now[0] = record.expiration - 1
            assert await reader.find_peers(RUN) == (record,)
            now[0] = record.expiration
            assert await reader.find_peers(RUN) == ()
            now[0] = 1e9  # then the record claims to hold for decades
            assert await reader.find_peers(RUN) == ()

    asyncio.run(scenario())


def _signed(identity, context, record):
    payload = canonical.encode(record)
    return gossip_pb2.SignedRecord(payload=payload, signature=identity.sign(context, payload)).SerializeToString()


def planted(node, key, name, value, expiration):
    storage, packed = node.protocol.storage, node.protocol.serializer.dumps(value)
    assert DHTLocalStorage.store_subkey(storage, DHTID.generate(key), name, packed, expiration)


def test_records_that_are_not_what_they_claim_are_passed_over(tmp_path):
    async def scenario():
        async with started_hosts(tmp_path, 2) as (host, reader_host):
            mallory = Identity.load_or_create(tmp_path / "mallory.key")
            honest = Discovery(host.dht, host.identity)
            await honest.announce_peer(RUN, await host.addresses())
            (record,) = await Discovery(reader_host.dht, reader_host.identity).find_peers(RUN)
            mine = dataclasses.replace(record, peer=mallory.peer_id, addresses=())
            key = f"adloco/{RUN}/peers"
            good = _signed(mallory, "peer record", mine)
            torn = bytearray(good)
            torn[-1] ^= 1
            bad = {
                "signature": bytes(torn),
                "context": _signed(mallory, "run record", mine),
                "other signer": _signed(mallory, "peer record", record),
                "subkey": good,  # signed well, but filed under another name
                "size": b"x" * (MAX_DHT_RECORD_BYTES + 1),
                "garbage": b"garbage",
                "type": "a string",
                "third party": _signed(mallory, "peer record", dataclasses.replace(mine, addresses=record.addresses)),
                "run": _signed(mallory, "peer record", dataclasses.replace(mine, run=OTHER_RUN)),
                "name": _signed(mallory, "peer record", dataclasses.replace(mine, nickname="evil\u202ename")),
            }
            for number, value in enumerate(bad.values()):
                name = f"{mallory.peer_id}{number}"
                assert not await host.dht.store(key, value, record.expiration, subkey=name)
                for node in (host.dht, reader_host.dht):  # a node of the adversary stores what it likes
                    planted(node, key, name, value, record.expiration + number)
            assert await host.dht.store(key, bad["third party"], record.expiration, subkey=mallory.peer_id)
            reader = Discovery(reader_host.dht, reader_host.identity)
            assert await reader.find_peers(RUN) == (record,)
            later = dataclasses.replace(mine, expiration=record.expiration + 50)
            value = _signed(mallory, "peer record", later)
            assert await host.dht.store(key, value, later.expiration, subkey=mallory.peer_id)
            assert {found.peer for found in await reader.find_peers(RUN)} == {host.me, mallory.peer_id}

    asyncio.run(scenario())


def test_a_value_that_cannot_be_unpacked_ends_no_search(tmp_path):
    async def scenario():
        async with started_hosts(tmp_path, 2) as (host, reader_host):
            await Discovery(host.dht, host.identity).announce_run(RUN, name="one", author=host.me, num_peers=1)
            key_id = next(iter(reader_host.dht.protocol.storage.data))
            for subkey, raw in (("a", b"\xc1"), ("b", b"\xc4\x05xx"), ("c", b""), ("d", b"\xc7\x01\x50\x00")):
                for node in (host.dht, reader_host.dht):
                    assert DHTLocalStorage.store_subkey(node.protocol.storage, key_id, subkey, raw, time.time() + 600.0)
            runs = await Discovery(reader_host.dht, reader_host.identity).list_runs()
            assert [run.run for run in runs] == [RUN]

    asyncio.run(scenario())


def test_an_author_of_any_length_is_neither_kept_nor_repeated():
    manifest = b"{}"
    run, long = SignedManifest(manifest=manifest, author=PeerId("x"), signature=b"").run, PeerId("z" * 1_000_000)
    known = identity._known_key.cache_info().currsize
    with pytest.raises(RemoteProtocolError, match="an author of 1000000 characters, at most 64 accepted"):
        SignedManifest(manifest=manifest, author=long, signature=b"").verified(run)
    assert not identity.is_peer_id(long) and identity._known_key.cache_info().currsize == known


def test_a_manifest_is_that_of_its_run_and_author(author, tmp_path):
    config = RunConfig(name="a run", seed=7, author=author.peer_id)
    manifest = SignedManifest.sign(config, author)
    assert manifest.run == config.digest
    assert SignedManifest.from_bytes(manifest.to_bytes()) == manifest
    assert manifest.verified(config.digest) == config
    other = Identity.load_or_create(tmp_path / "other.key")
    for bad, words in (
        (dataclasses.replace(manifest, manifest=canonical.encode(RunConfig(name="another run"))), "digest"),
        (dataclasses.replace(manifest, author=other.peer_id), "not signed"),
        (dataclasses.replace(manifest, signature=other.sign("manifest", manifest.manifest)), "not signed"),
        (dataclasses.replace(manifest, manifest=b"x" * 100_000), "bytes"),
        (SignedManifest.sign(config, other), "its author is"),
    ):
        with pytest.raises(RemoteProtocolError, match=words):
            bad.verified(config.digest)
    with pytest.raises(RemoteProtocolError):
        SignedManifest.from_bytes(b"\xff")


def test_a_well_signed_manifest_must_still_be_a_configuration(author):
    payload = b'{"protocol":%d}' % NEWEST
    manifest = SignedManifest(manifest=payload, author=author.peer_id, signature=author.sign("manifest", payload))
    with pytest.raises(RemoteProtocolError, match="RunConfig"):
        manifest.verified(manifest.run)


@pytest.mark.parametrize(("protocol", "error"), [(NEWEST + 1, ProtocolOutgrown), (OLDEST - 1, RemoteProtocolError)])
def test_a_run_of_another_protocol_is_refused_by_its_number_whatever_its_settings_are(author, protocol, error):
    payload = b'{"protocol":%d,"setting_of_another_version":1}' % protocol
    manifest = SignedManifest(manifest=payload, author=author.peer_id, signature=author.sign("manifest", payload))
    known = f"knows only {OLDEST} to {NEWEST}: "
    with pytest.raises(error, match=f"the run follows protocol {protocol}, and the installed version {known}"):
        manifest.verified(manifest.run)


DRAWS = "a run\x1b[2J\u202e"


def test_a_manifest_with_a_name_that_draws_on_the_terminal_is_refused(author):
    """A joiner prints it."""
    config = RunConfig(name=DRAWS, author=author.peer_id)
    with pytest.raises(RemoteProtocolError, match="RunConfig: name"):
        SignedManifest.sign(config, author).verified(config.digest)


def test_a_record_of_a_run_that_draws_on_the_terminal_is_refused(author):
    """Anybody may announce one, and a newcomer that finds several lists them."""
    record = RunRecord(
        run=RUN, name="a run", author=author.peer_id, num_peers=1, announcer=author.peer_id, protocol=16, expiration=1e9
    )
    decode(RunRecord, canonical.encode(record), max_bytes=MAX_DHT_RECORD_BYTES)
    for forged in (dataclasses.replace(record, name=DRAWS), dataclasses.replace(record, author=PeerId(DRAWS))):
        with pytest.raises(RemoteProtocolError, match="'is_printable' failed"):
            decode(RunRecord, canonical.encode(forged), max_bytes=MAX_DHT_RECORD_BYTES)


def test_the_largest_records_fit_into_the_dht():
    record = PeerRecord(
        run=RUN,
        peer=PeerId("p" * 64),
        addresses=("a" * 400,) * 16,
        nickname="n" * MAX_LABEL_CHARS,
        version="v" * MAX_LABEL_CHARS,
        protocol=NEWEST,
        expiration=1e9,
    )
    assert len(canonical.encode(record)) + 100 < MAX_DHT_RECORD_BYTES
