"""Real daemons on loopback: start, restart, death, and what the user is told."""

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.swarm.p2p import swarm_node
from adloco_p2p.swarm.p2p.address_book import AddressBook
from adloco_p2p.swarm.p2p.addresses import parse_peer_addresses
from adloco_p2p.swarm.p2p.dialling import Failure
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode
from tests.swarm.patience import PATIENCE_SECONDS
from tests.swarm.swarm_hosts import LOCAL, started_hosts

ALICE = PeerId("12D3KooWQkxwZWd7pAqo4nri2UXpypCziQafHx7YoEtdZBsauLWL")

HOST_PROCESS = """
import asyncio, sys
from pathlib import Path
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode

async def main():
    config = PeerConfig(host_maddrs=("/ip4/127.0.0.1/tcp/0",), daemon_start_seconds=240.0)
    host = await SwarmNode.start(workdir=Path(sys.argv[1]), config=config, initial_peers=sys.argv[2:])
    print(host.p2p._child.pid, (await host.addresses())[0], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_hosts_meet_and_leave(tmp_path):
    async def scenario():
        async with started_hosts(tmp_path, 3) as hosts:
            first, second, third = hosts
            assert first.me in await second.peers_connected()
            (address,) = await third.addresses()
            assert address.startswith("/ip4/127.0.0.1/tcp/")
            assert address.endswith(f"/p2p/{third.me}")
            assert "this machine only" in await third.describe_reachability()
            assert await second.connect(await third.addresses()) == {third.me: None}
            assert third.me in await second.peers_connected()
            nobody = await second.connect(["nonsense", f"/ip4/127.0.0.1/tcp/1/p2p/{ALICE}"], should_retry=False)
            assert list(nobody) == [ALICE] and "refused" in str(nobody[ALICE])
            daemons = [host.p2p._child.pid for host in hosts]
        assert not any(psutil.pid_exists(pid) for pid in daemons)
        assert not any(host._sockets.exists() for host in hosts)

    asyncio.run(scenario())


def test_a_client_takes_part_without_being_reachable(tmp_path):
    async def scenario():
        async with started_hosts(tmp_path, 1) as (server,):
            workdir = tmp_path / "client"
            workdir.mkdir()
            initial_peers = await server.addresses()
            client = await SwarmNode.start(workdir=workdir, config=PeerConfig(client_mode=True), initial_peers=initial_peers)
            try:
                assert await client.addresses() == ()
                assert "client mode" in await client.describe_reachability()
                assert client.me in await server.peers_connected()
            finally:
                await client.stop()

    asyncio.run(scenario())


def test_the_death_of_the_daemon_is_noticed(tmp_path):
    async def scenario():
        async with started_hosts(tmp_path, 1) as (host,):
            os.kill(host.p2p._child.pid, signal.SIGKILL)
            with pytest.raises(SwarmError, match="the p2p daemon ended; start again"):
                await host.watch_daemon()
            with pytest.raises(SwarmError, match="does not answer"):
                await host.peers_connected()

    asyncio.run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux kills the daemon")
def test_the_daemon_dies_with_a_killed_process_and_the_peer_returns_at_once(tmp_path):
    async def come_back(workdir, address, initial_peers):
        host = await SwarmNode.start(workdir=workdir, config=LOCAL, initial_peers=initial_peers)
        try:
            assert await host.addresses() == (address,)  # the same identity on the same port
            assert len(await host.peers_connected()) == 1
        finally:
            await host.stop()

    async def scenario():
        async with started_hosts(tmp_path, 1) as (other,):
            workdir = tmp_path / "killed"
            workdir.mkdir()
            initial_peers = await other.addresses()
            command = [sys.executable, "-c", HOST_PROCESS, str(workdir), *initial_peers]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            assert process.stdout is not None
            line = await process.stdout.readline()
            pid, address = line.decode().split()
            daemon = os.pidfd_open(int(pid))
            try:
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
                has_ended, _, _ = select.select([daemon], [], [], PATIENCE_SECONDS)
                assert has_ended
            finally:
                os.close(daemon)
            await come_back(workdir, address, initial_peers)

    asyncio.run(scenario())


def test_a_copied_identity_is_refused_while_the_first_one_lives(tmp_path):
    async def scenario():
        async with started_hosts(tmp_path, 2) as (first, _):
            copy = tmp_path / "copy"
            copy.mkdir()
            shutil.copy(tmp_path / "peer-1" / "identity.key", copy)
            with pytest.raises(SwarmError, match="identity"):
                await SwarmNode.start(workdir=copy, config=LOCAL, initial_peers=await first.addresses())

    asyncio.run(scenario())


def test_unreachable_peers_are_named_and_cached_ones_help_the_next_time(tmp_path):
    nobody = f"/ip4/127.0.0.1/tcp/1/p2p/{ALICE}"

    async def scenario():
        alone = tmp_path / "alone"
        said: list[str] = []
        alone.mkdir()
        with pytest.raises(SwarmError, match=rf"(?s)/ip4/127.0.0.1/tcp/1 \({ALICE}\).*refused"):
            await SwarmNode.start(
                workdir=alone, config=LOCAL, initial_peers=[nobody], join_timeout_seconds=0.0, say=said.append
            )
        assert len(said) == 1 and ALICE in said[0] and "refused" in said[0]  # at once, not when the time is over
        async with started_hosts(tmp_path, 1) as (first,):
            second = await SwarmNode.start(workdir=alone, config=LOCAL, initial_peers=[nobody, *await first.addresses()])
            assert [unreached.peer for unreached in second.unreached] == [ALICE]
            await second.stop()
            again = await SwarmNode.start(workdir=alone, config=LOCAL, initial_peers=[nobody])  # its bootstrap is dead
            assert first.me in await again.peers_connected()
            await again.stop()
        # everybody is gone: who does not ask for others may begin alone
        begins = await SwarmNode.start(workdir=alone, config=LOCAL)
        assert [unreached.peer for unreached in begins.unreached] == [first.me]
        await begins.stop()

    asyncio.run(scenario())


def test_remembered_addresses_are_used(tmp_path):
    async def scenario():
        async with started_hosts(tmp_path, 2) as (first, second):
            second.remember(["nonsense", *await second.addresses(), *await first.addresses()])
            await second.stop()
            again = await SwarmNode.start(workdir=tmp_path / "peer-1", config=LOCAL)
            assert await again.peers_connected() == (first.me,)
            await again.stop()

    asyncio.run(scenario())


def test_a_stranger_that_answers_at_the_next_start_is_still_one(tmp_path):
    async def scenario():
        async with started_hosts(tmp_path, 1) as (first,):
            (workdir := tmp_path / "alone").mkdir()
            (stranger,) = await first.addresses()
            AddressBook(workdir / "peers.json").add_peers([], strangers=parse_peer_addresses([stranger]))
            for initial_peers, num_strangers in (([], 1), ([stranger], 0)):  # one that the user names is none
                again = await SwarmNode.start(workdir=workdir, config=LOCAL, initial_peers=initial_peers)
                assert await again.peers_connected() == (first.me,)
                await again.stop()
                book = AddressBook(workdir / "peers.json")
                assert len(book.strangers) == num_strangers and len(book.peers) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("config", "initial_peers", "words"),
    [
        (LOCAL, ["127.0.0.1:4001"], "neither a link nor an address"),
        (PeerConfig(host_maddrs=("localhost",)), [], "host_maddrs"),
        (PeerConfig(host_maddrs=()), [], "empty"),
        (PeerConfig(announce_maddrs=("/ip4/203.0.113.7/tcp/0",)), [], "leaves the port open"),
    ],
)
def test_what_the_user_wrote_is_checked_first(tmp_path, config, initial_peers, words):
    with pytest.raises(ConfigError, match=words):
        asyncio.run(SwarmNode.start(workdir=tmp_path, config=config, initial_peers=initial_peers))
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_named(tmp_path):
    async def scenario():
        async with started_hosts(tmp_path, 1) as (host,):
            maddr = (await host.addresses())[0].split("/p2p/")[0]
            other = tmp_path / "other"
            other.mkdir()
            with pytest.raises(SwarmError, match=f"cannot listen on {maddr}: in use"):
                await SwarmNode.start(workdir=other, config=PeerConfig(host_maddrs=(maddr,)))

    asyncio.run(scenario())


def test_announced_addresses_are_those_that_others_get(tmp_path):
    async def scenario():
        announced = "/ip4/203.0.113.7/tcp/4001"
        config = PeerConfig(host_maddrs=("/ip4/127.0.0.1/tcp/0",), announce_maddrs=(announced,))
        host = await SwarmNode.start(workdir=tmp_path, config=config)
        try:
            assert await host.addresses() == (f"{announced}/p2p/{host.me}",)
            assert announced in await host.describe_reachability()
        finally:
            await host.stop()

    asyncio.run(scenario())


def test_a_plain_hivemind_dht_process_is_a_bootstrap(tmp_path):
    async def scenario():
        program = Path(sys.executable).parent / "hivemind-dht"
        process = await asyncio.create_subprocess_exec(
            program, "--host_maddrs", "/ip4/127.0.0.1/tcp/0", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            assert process.stdout is not None
            address = None
            while address is None:
                words = (await process.stdout.readline()).decode().split()
                address = next((word for word in words if word.startswith("/ip4/127.0.0.1/")), None)
            hosts = []
            for name in ("one", "two"):
                (tmp_path / name).mkdir()
                hosts.append(await SwarmNode.start(workdir=tmp_path / name, config=LOCAL, initial_peers=[address]))
            one, two = hosts
            await one.dht.store("key", b"value", expiration_time=4e9, subkey="subkey")
            found = await two.dht.get("key", latest=True)
            assert found.value["subkey"].value == b"value"
            await asyncio.gather(one.stop(), two.stop())
        finally:
            process.terminate()
            await process.wait()

    asyncio.run(scenario())


ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{ALICE}"


def joining(monkeypatch, answers, *, seconds=20.0):
    """Answers of libp2p, the last one for ever -> the text of the error, what was said, and the time that it took."""
    now = 0.0
    said: list[str] = []

    async def sleep(duration):
        nonlocal now
        now += duration

    async def attempt(p2p, addresses, *, timeout_seconds):
        nonlocal now
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        now += timeout_seconds if found is SILENT else 0.0
        return {address.peer: found for address in addresses}

    monkeypatch.setattr(swarm_node, "attempt", attempt)
    monkeypatch.setattr(swarm_node, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("asyncio.sleep", sleep)
    node = SwarmNode.__new__(SwarmNode)  # nothing of a started one is used
    node.p2p = None
    notice = swarm_node._Notice(said.append, f"; trying for {seconds:.0f} s")
    known = parse_peer_addresses([ADDRESS])
    with pytest.raises(SwarmError) as caught:
        asyncio.run(node._join(known, known, seconds, may_begin_alone=False, notice=notice))
    return str(caught.value), said, now


SILENT = Failure(reason="no answer within 10 s")
REFUSED = Failure(reason="connection refused")
BACKOFF = Failure(reason="it failed a moment ago (dial backoff)")


def test_an_address_of_another_peer_is_called_wrong_at_once(monkeypatch):
    other = Failure(reason="another peer answers there", is_another=True)
    words, said, seconds = joining(monkeypatch, [other])
    assert seconds == 0 and said == [] and "another peer answers there" in words


def test_a_port_where_nobody_listens_is_tried_for_the_time_that_was_named(monkeypatch):
    """The peer may be starting, as in a container beside this one: it imports for many seconds before it listens."""
    words, said, seconds = joining(monkeypatch, [REFUSED, *[BACKOFF] * 5, REFUSED])
    assert 19.0 <= seconds <= 21.0 and "connection refused" in words, "the more telling reason"
    assert len(said) == 1 and "trying for 20 s" in said[0] and "connection refused" in said[0]


def test_silence_is_tried_for_the_time_that_was_named_and_no_longer(monkeypatch):
    words, said, seconds = joining(monkeypatch, [SILENT, *[BACKOFF] * 5, SILENT])
    assert "no answer within 10 s" in words and len(said) == 1
    assert 19.0 <= seconds <= 21.0


def test_the_user_is_told_what_is_tried_while_the_first_attempt_lasts(monkeypatch):
    monkeypatch.setattr(swarm_node, "NOTICE_SECONDS", 0.0)
    known = parse_peer_addresses([ADDRESS.replace("4001", str(4000 + index)) for index in range(8)])

    async def scenario():
        told = asyncio.Event()
        said: list[str] = []

        def say(words: str) -> None:
            said.append(words)
            told.set()

        notice = swarm_node._Notice(say, "; trying for 20 s")
        async with notice.of_silence(known):
            await told.wait()
        notice.tell("once is enough")
        assert len(said) == 1 and said[0].startswith("no answer from /ip4/192.0.2.1/tcp/4000, ")
        assert said[0].endswith(" and 2 more yet; trying for 20 s")

    asyncio.run(scenario())
