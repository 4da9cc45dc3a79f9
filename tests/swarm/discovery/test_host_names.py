"""Names in a peer's own addresses: it announces them with the numbers that they have."""

import asyncio
import socket

import pytest

from adloco_p2p.swarm.discovery.host_names import with_numbers
from adloco_p2p.swarm.p2p.addresses import leads_out

NUMBERS = {"peer.example.org": ["2606:4700::7", "198.41.0.4"], "inside.example.org": ["10.0.0.7"]}
PUBLIC = ("/ip4/192.0.32.7/tcp/1",)


async def getaddrinfo(_: object, name: str, port: None, **asked_for: int) -> list[object]:
    if name not in NUMBERS:
        raise socket.gaierror
    kinds = {host: socket.AF_INET6 if ":" in host else socket.AF_INET for host in NUMBERS[name]}
    return [
        (kind, asked_for["type"], 6, "", (host, 0))
        for host, kind in kinds.items()
        if asked_for["family"] in (kind, socket.AF_UNSPEC)
    ]


@pytest.fixture(autouse=True)
def _lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)


def test_a_public_peer_dials_a_peer_that_announces_a_name() -> None:
    announced = asyncio.run(with_numbers(["/dns4/peer.example.org/tcp/1/p2p/ID"]))
    assert announced == ("/ip4/198.41.0.4/tcp/1/p2p/ID", "/dns4/peer.example.org/tcp/1/p2p/ID")
    assert [leads_out(address, PUBLIC) for address in announced] == [True, False]


def test_both_families_and_the_relay_of_an_address() -> None:
    announced = asyncio.run(with_numbers(["/dns/peer.example.org/tcp/1/p2p/R/p2p-circuit/p2p/ID"]))
    assert sorted(announced) == [
        "/dns/peer.example.org/tcp/1/p2p/R/p2p-circuit/p2p/ID",
        "/ip4/198.41.0.4/tcp/1/p2p/R/p2p-circuit/p2p/ID",
        "/ip6/2606:4700::7/tcp/1/p2p/R/p2p-circuit/p2p/ID",
    ]


def test_a_name_without_numbers_is_announced_as_it_is() -> None:
    own = ["/dns4/none.example/tcp/1/p2p/ID", "/ip4/198.41.0.4/tcp/1/p2p/ID"]
    assert asyncio.run(with_numbers(own)) == tuple(own)


def test_a_number_of_an_inner_network_comes_last() -> None:
    announced = asyncio.run(with_numbers(["/dns/inside.example.org/tcp/1/p2p/ID"]))
    assert announced == ("/dns/inside.example.org/tcp/1/p2p/ID", "/ip4/10.0.0.7/tcp/1/p2p/ID")
