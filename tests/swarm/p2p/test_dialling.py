"""Who was not reached is tried again, within bounds; addresses through relays are written as the daemon reads them."""

import asyncio

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError

from adloco_p2p.swarm.p2p import dialling
from adloco_p2p.swarm.p2p.addresses import parse_peer_address
from adloco_p2p.swarm.p2p.dialling import attempt, dial_with_retries, dialable

ALICE = "12D3KooWQkxwZWd7pAqo4nri2UXpypCziQafHx7YoEtdZBsauLWL"
BOB = "12D3KooWAyUjq8p3jBZTzB3Au3Bib8B2cfVSBWUBmVFTiaMLWPyG"


class Daemon:
    """Refuses each peer as often as told; stands for hivemind's P2P and its client."""

    def __init__(self, refusals):
        self.refusals = refusals
        self.calls = []
        self.dialled = []
        self._client = self

    async def connect(self, peer, maddrs):
        peer = peer.to_base58()
        self.calls.append(peer)
        self.dialled.append(maddrs)
        if self.refusals[peer]:
            raise P2PDaemonError(f"failed to dial\n  * [/ip4/127.0.0.1/tcp/1] {self.refusals[peer].pop(0)}")


def _dial(monkeypatch, refusals):
    monkeypatch.setattr(dialling, "PAUSES_SECONDS", (0.0, 0.0))
    daemon = Daemon(refusals)
    addresses = [parse_peer_address(f"/ip4/127.0.0.1/tcp/1/p2p/{peer}") for peer in refusals]
    return asyncio.run(dial_with_retries(daemon, addresses, draw=lambda: 0.5)), daemon.calls


def test_both_dialled_at_once_and_the_second_attempt_helps(monkeypatch):
    problems, calls = _dial(monkeypatch, {ALICE: ["crossed"], BOB: []})
    assert problems == {ALICE: None, BOB: None}
    assert calls == [ALICE, BOB, ALICE]  # who was reached is left in peace


def test_three_attempts_and_the_first_reason_is_shown(monkeypatch):
    problems, calls = _dial(monkeypatch, {ALICE: ["connection refused", "dial backoff", "dial backoff", "never asked"]})
    assert problems == {ALICE: "[/ip4/127.0.0.1/tcp/1] connection refused"}
    assert calls == [ALICE] * 3


def test_a_reason_wins_over_a_dial_that_libp2p_left_out(monkeypatch):
    """Of one attempt at several addresses, and of several attempts, whichever comes first."""
    two = "dial backoff\n  * [/ip4/127.0.0.2/tcp/1] no route\n  * [/ip4/127.0.0.3/tcp/1] dial backoff"
    problems, _ = _dial(monkeypatch, {ALICE: ["dial backoff", "connection refused", "no route"], BOB: [two] * 3})
    assert problems == {ALICE: "[/ip4/127.0.0.1/tcp/1] connection refused", BOB: "[/ip4/127.0.0.2/tcp/1] no route"}
    problems, _ = _dial(monkeypatch, {ALICE: ["dial backoff"] * 3})
    assert problems == {ALICE: "it failed a moment ago, and libp2p does not dial again so soon (dial backoff)"}


def test_an_address_that_cannot_be_encoded_costs_neither_the_others_nor_other_addresses_of_its_peer():
    """Anybody may announce a host with an underscore in its name."""
    daemon = Daemon({ALICE: [], BOB: []})
    odd = "/dns4/my_host/tcp/1"
    addresses = [parse_peer_address(text) for text in (f"{odd}/p2p/{ALICE}", f"/ip4/127.0.0.1/tcp/1/p2p/{ALICE}")]
    assert asyncio.run(dialling.dial(daemon, addresses)) == {ALICE: None}
    assert [[str(maddr) for maddr in maddrs] for maddrs in daemon.dialled] == [["/ip4/127.0.0.1/tcp/1"]]
    found = asyncio.run(dialling.dial(daemon, [addresses[0], parse_peer_address(f"/ip4/127.0.0.1/tcp/1/p2p/{BOB}")]))
    of_alice, of_bob = found.values()
    assert of_bob is None and "my_host" in str(of_alice) and daemon.calls == [ALICE, BOB]


def test_an_answer_of_something_else_than_the_peer_is_told_in_words(monkeypatch):
    at = "failed to negotiate security protocol:"
    other = f"{at} peer id mismatch: expected {ALICE}, but remote key matches {BOB}"
    problems, _ = _dial(monkeypatch, {ALICE: [other] * 3, BOB: [f"{at} message did not have trailing newline"] * 3})
    address = "[/ip4/127.0.0.1/tcp/1]"
    assert problems[ALICE] == (
        f"{address} another peer answers there, {BOB}: the address was changed on its way, or that peer began anew"
    )
    assert problems[BOB] == f"{address} what answers there is no peer, or a proxy is in between"


def test_a_relay_is_written_as_the_daemon_reads_it():
    """By hand, after the multiaddr table: ip4 is 04, tcp 06, p2p a503 with its length, p2p-circuit a202."""
    relay = PeerID.from_base58(BOB).to_bytes()
    assert len(relay) == 38
    wanted = bytes.fromhex("04cb007107061092a50326") + relay + bytes.fromhex("a202")
    assert dialable(f"/ip4/203.0.113.7/tcp/4242/p2p/{BOB}/p2p-circuit").to_bytes() == wanted
    assert dialable("/ip4/203.0.113.7/tcp/4242").to_bytes() == bytes.fromhex("04cb007107061092")


def failure(*causes):
    lines = "".join(f"\n  * [/ip4/192.0.2.{index}/tcp/1] {cause}" for index, cause in enumerate(causes))

    class Refusing(Daemon):
        async def connect(self, peer, maddrs):
            raise P2PDaemonError(f"failed to dial: all dials failed{lines}")

    (found,) = asyncio.run(attempt(Refusing({}), [parse_peer_address(f"/ip4/192.0.2.1/tcp/1/p2p/{ALICE}")])).values()
    return found


def test_what_is_certain_about_an_address_and_what_may_be_a_fault_of_the_network():
    refused = "dial tcp4 192.0.2.1:1: connect: connection refused"
    other = f"failed to negotiate security protocol: peer id mismatch: expected {ALICE}, but remote key matches {BOB}"
    web = "failed to negotiate security protocol: message did not have trailing newline"
    silent = "dial tcp4 192.0.2.1:1: i/o timeout"
    assert failure(other).is_another and failure(other, other).is_another
    assert not failure(refused, other).is_another, "it may begin to listen at the address that refused"
    for causes in ((refused,), (web,), (silent,), (other, silent), (refused, "dial backoff"), ("no route to host",)):
        assert not failure(*causes).is_another, causes
