"""The addresses of the link that a node prints and keeps: they lead to the run after every restart."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.runtime.network_node import LINKED_ADDRESSES, _say_link, addresses_known, addresses_of_link
from adloco_p2p.storage.admission_files import keep_address
from adloco_p2p.swarm.p2p.addresses import PeerAddress, parse_peer_addresses
from adloco_p2p.swarm.p2p.identity import Identity

ME, FOUNDER = (PeerId(f"12D3KooW{letter * 44}") for letter in "AB")


def after_starts(own: list[list[str]], initial: tuple[PeerAddress, ...]) -> tuple[str, ...]:
    """Of the link after a start with each of these own addresses; from the second one on the peer begins with its link."""
    linked: tuple[str, ...] = ()
    for addresses in own:
        linked = addresses_of_link(addresses, initial, me=ME)
        initial = parse_peer_addresses(linked)
    return linked


def test_a_joiner_of_a_swarm_on_this_machine_keeps_the_address_of_the_founder() -> None:
    founder, own = f"/ip4/127.0.0.1/tcp/38779/p2p/{FOUNDER}", [[f"/ip4/192.0.2.2/tcp/{4 + life}/p2p/{ME}"] for life in range(3)]
    assert after_starts(own, parse_peer_addresses([founder])) == (founder, own[-1][0])


def test_a_start_without_initial_peers_keeps_those_of_the_link_in_the_directory(tmp_path: Path) -> None:
    assert addresses_known(tmp_path) == ()
    bootstrap, own = (f"/ip4/192.0.2.{number}/tcp/4/p2p/{peer}" for number, peer in ((1, FOUNDER), (2, ME)))
    keep_address(tmp_path, f"adloco://{'a' * 64},{bootstrap},{own}")
    assert addresses_of_link([own], addresses_known(tmp_path), me=ME) == (bootstrap, own)


def test_own_addresses_of_earlier_starts_do_not_crowd_out_those_of_others() -> None:
    founder = [f"/ip4/8.8.8.8/tcp/{port}/p2p/{FOUNDER}" for port in (1, 2)]
    own = [[f"/ip4/9.9.{life}.{number}/tcp/4001/p2p/{ME}" for number in range(8)] for life in range(3)]
    assert after_starts(own, parse_peer_addresses(founder)) == (*founder, *own[-1][: LINKED_ADDRESSES - 2])


def test_loopback_of_others_goes_where_they_have_a_wider_address() -> None:
    near, wide = (f"/ip4/{host}/tcp/1/p2p/{FOUNDER}" for host in ("127.0.0.1", "192.0.2.1"))
    own = f"/ip4/192.0.2.2/tcp/4/p2p/{ME}"
    assert after_starts([[own]], parse_peer_addresses([near, wide])) == (wide, own)


def test_the_link_has_room_for_this_peer_and_takes_more_of_others_where_it_has_no_address() -> None:
    others = [f"/ip4/8.8.8.8/tcp/{port}/p2p/{FOUNDER}" for port in range(8)]
    own = f"/ip4/9.9.9.9/tcp/4/p2p/{ME}"
    assert own in after_starts([[own]], parse_peer_addresses(others))
    assert after_starts([[]], parse_peer_addresses(others)) == tuple(others[:LINKED_ADDRESSES])


@pytest.mark.parametrize(("rule", "is_warned"), [("mean", True), ("robust", False)])
def test_the_author_is_warned_beside_the_link_where_one_host_can_ruin_the_model(
    rule: Any, is_warned: bool, tmp_path: Path
) -> None:
    author = Identity.load_or_create(tmp_path / "identity.key")
    run = replace(RunConfig(), author=author.peer_id)
    run = replace(run, averaging=replace(run.averaging, aggregation=rule))
    said: list[str] = []
    embedding: Any = SimpleNamespace(say=said.append, workdir=SimpleNamespace(path=tmp_path))
    link = _say_link(f"adloco://{run.digest},/ip4/192.0.2.2/tcp/4/p2p/{author.peer_id}", embedding, run, author)
    assert said[0] == f"join link: {link}"
    assert any("--set averaging.aggregation=robust" in line for line in said) == is_warned
