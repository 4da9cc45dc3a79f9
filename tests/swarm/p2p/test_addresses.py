import json
import shlex

import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.errors import ConfigError
from adloco_p2p.swarm.discovery.join_link import format_link, parse_link, split_initial_peers, wanted_run
from adloco_p2p.swarm.p2p.address_book import MAX_PEERS, MAX_STRANGERS, AddressBook, ListenPort, Pages
from adloco_p2p.swarm.p2p.addresses import check_address, leads_out, parse_peer_address, parse_peer_addresses, reach, shareable
from adloco_p2p.swarm.transport.token_bucket import TokenBucket

ALICE = "12D3KooWQkxwZWd7pAqo4nri2UXpypCziQafHx7YoEtdZBsauLWL"
BOB = "12D3KooWR6YTx5UBwBLEVsoRBKFMTrzHb9jnKJf4bhuNBHYSNbJL"
SECP256K1, RSA = "16Uiu2HAkK2yReDhZ3qgDpaDCurPBU1ssAYqNE7LujF32H4xyBDFM", "QmNLfbof5rLekrACjeuLk9JmGZD2HDBHCU4z16iYKmx5SE"
RUN = Digest("ab" * 32)


@pytest.mark.parametrize(
    "text",
    [
        f"/ip4/203.0.113.7/tcp/4001/p2p/{ALICE}",
        f"/ip6/2001:db8::1/udp/4001/quic-v1/p2p/{ALICE}",
        f"/dns4/peer.example.org/tcp/443/wss/p2p/{ALICE}",
        f"/ip4/203.0.113.7/tcp/4001/p2p/{BOB}/p2p-circuit/p2p/{ALICE}",
        f"/ip4/203.0.113.7/tcp/4001/p2p/{SECP256K1}/p2p-circuit/p2p/{ALICE}",
        f"/ip4/203.0.113.7/tcp/4001/p2p/{RSA}/p2p-circuit/p2p/{ALICE}",
    ],
)
def test_an_address_comes_back_as_it_was_written(text):
    address = parse_peer_address(f" {text}\n")
    assert address.peer == ALICE
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/ip4/203.0.113.7/tcp/4001", "without /p2p/"),
        ("203.0.113.7:4001", "neither a link nor an address"),
        (f"/p2p/{ALICE}", "no address"),
        ("/ip4/203.0.113.7/tcp/4001/p2p/me", "not a PeerID"),
        (f"/ip4/203.0.113.7/tcp/4001/p2p/Qm{'z' * 44}", "not a PeerID"),
        (f"/ip4/203.0.113.7/tcp/4001/ip4/127.0.0.1/tcp/22/p2p/{ALICE}", "more than one host"),
        (f"/ip6/fe80::1%\x1b[2J/tcp/4001/p2p/{ALICE}", "not an ip6 address"),
        (f"/ip4/203.0.113/tcp/4001/p2p/{ALICE}", "not an ip4 address"),
        (f"/ip4/203.0.113.7/tcp/65536/p2p/{ALICE}", "not a port"),
        (f"/ip4/203.0.113.7/tcp/p2p/{ALICE}", "not a port|nothing after"),
        (f"/ip4/203.0.113.7/p2p/{ALICE}", "needs a host and a port"),
        (f"/tcp/4001/p2p/{ALICE}", "needs a host and a port"),
        (f"/http/x/tcp/4001/p2p/{ALICE}", "not a protocol"),
        (f"/dns4/bad_host!/tcp/1/p2p/{ALICE}", "not a host name"),
        (f"/ip4/203.0.113.7/tcp/4001{'/ws' * 200}/p2p/{ALICE}", "longer than"),
    ],
)
def test_bad_addresses_are_refused_with_the_reason(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_peer_address(text)


@pytest.mark.parametrize("name", [f"Qm{'1' * 44}", f"Qm{'z' * 44}", f"{ALICE}1", ALICE[:-1], SECP256K1[:-1], f"{RSA}z"])
def test_a_relay_whose_name_only_looks_like_a_peer_id_is_refused_and_not_kept(name, tmp_path):
    """p2pd gets the known addresses as relays at its start and ends where it cannot read one, so a record of a stranger that is
    kept in peers.json would keep this peer from ever starting again. A file that has such an address is read without it."""
    relayed, direct = (f"/ip4/203.0.113.7/tcp/4001{way}/p2p/{ALICE}" for way in (f"/p2p/{name}/p2p-circuit", ""))
    with pytest.raises(ConfigError, match="not a PeerID"):
        parse_peer_address(relayed)
    (tmp_path / "peers.json").write_bytes(canonical.encode(Pages(peers=(relayed, direct))))
    assert [str(address) for address in AddressBook(tmp_path / "peers.json").peers] == [direct]


def test_every_bad_address_is_named():
    with pytest.raises(ConfigError) as caught:
        parse_peer_addresses(["here", f"/ip4/203.0.113.7/tcp/1/p2p/{ALICE}", "there"])
    assert len(caught.value.problems) == 2


def test_a_listening_address_has_no_peer():
    check_address("/ip4/0.0.0.0/tcp/0")
    with pytest.raises(ConfigError, match="does not begin with /"):
        check_address("0.0.0.0:4001")


def test_others_get_the_widest_reach_first_and_no_loopback():
    local, lan = "/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.4/tcp/1"
    relayed = f"/ip4/203.0.113.9/tcp/1/p2p/{BOB}/p2p-circuit"
    public = "/ip4/8.8.8.8/tcp/1"
    assert [reach(address) for address in (local, lan, relayed, public)] == ["loopback", "private", "relay", "public"]
    assert shareable([local, lan, relayed, public, lan]) == (public, relayed, lan)
    assert shareable([local]) == (local,)


def test_a_link_leads_where_it_was_made_for():
    addresses = [f"/ip4/203.0.113.7/tcp/4001/p2p/{ALICE}", f"/dns4/b.example.org/tcp/1/p2p/{BOB}"]
    text = format_link(RUN, addresses)
    assert text == f"adloco://{RUN},{addresses[0]},{addresses[1]}"
    assert shlex.quote(text) == text  # a shell takes it as one word
    for form in (text, f"adloco://{RUN}?peer={addresses[0]}&peer={addresses[1]}"):
        link = parse_link(form)
        assert link.run == RUN
        assert [str(peer) for peer in link.peers] == addresses
    assert parse_link(format_link(RUN, [])).peers == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("adloco:", "is not a join link"),
        ("adloco://short", "64 hexadecimal digits"),
        (f"adloco://{'AB' * 32}", "64 hexadecimal digits in lower case"),
        (f"http://{RUN}", "is not a join link"),
        (f"adloco://{RUN}/path", "64 hexadecimal digits"),
        (f"adloco://{RUN}?peer=nowhere", "'nowhere': neither a link nor an address"),
        (f"adloco://{RUN},nowhere", "'nowhere': neither a link nor an address"),
        (f"adloco://{RUN},,/ip4/203.0.113.7/tcp/1/p2p/{ALICE}", "'': neither a link nor an address"),
        (f"adloco://{RUN}?host=x", "is not a join link"),
        (f"adloco://{RUN}?peer", "bad query field: 'peer'"),
        (f"adloco://{RUN}#part", "64 hexadecimal digits"),
        (f"adloco://{RUN}?" + "peer=x&" * 100, "is not a join link"),
        ("adloco://[", "64 hexadecimal digits"),
        ("adloco://" + "a" * 9000, "longer than 8192 characters"),
    ],
)
def test_a_bad_link_is_refused_with_its_reason(text, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_link(text)


def test_a_link_and_an_option_that_name_two_runs_are_refused():
    assert wanted_run(RUN, None) == wanted_run(RUN, RUN[:4]) == RUN
    assert wanted_run(None, "12") == "12" and wanted_run(None, None) is None
    with pytest.raises(ConfigError, match=f"--run 12: the join link leads to run {RUN[:16]}") as error:
        wanted_run(RUN, "12")
    assert error.value.code == "E205"


def test_a_piece_of_a_link_is_named_as_one_and_no_error_shows_the_invitation():
    link = f"{format_link(RUN, [f'/ip4/203.0.113.7/tcp/1/p2p/{ALICE}'])},invite:SECRET"
    for piece in (link[3:], link.replace("adloco:", "http:"), link[80:]):
        with pytest.raises(ConfigError, match="begins with adloco://, and this is a piece of one") as error:
            split_initial_peers([piece])
        assert "SECRET" not in str(error.value)
    with pytest.raises(ConfigError, match="64 hexadecimal digits") as error:
        split_initial_peers([link.replace(RUN, RUN[1:])])
    assert "SECRET" not in str(error.value)


def test_a_link_that_was_copied_with_line_breaks_is_read():
    link = f"{format_link(RUN, [f'/ip4/203.0.113.7/tcp/1/p2p/{ALICE}'])},invite:SECRET"
    broken = f"{link[:70]}\n  {link[70:120]}\r\n{link[120:]}\n"
    assert parse_link(broken) == parse_link(link)


def test_links_and_addresses_mix():
    address = f"/ip4/203.0.113.7/tcp/1/p2p/{ALICE}"
    run, peers = split_initial_peers([address, format_link(RUN, [address, f"/ip4/203.0.113.8/tcp/1/p2p/{BOB}"])])
    assert run == RUN
    assert [peer.peer for peer in peers] == [ALICE, BOB]
    assert split_initial_peers([address])[0] is None
    with pytest.raises(ConfigError, match="different runs"):
        split_initial_peers([f"adloco://{RUN}", f"adloco://{'cd' * 32}"])
    assert split_initial_peers([address, f"adloco://{RUN}"])[0] == RUN


def test_a_link_that_was_cut_before_its_addresses_is_refused_at_once():
    with pytest.raises(ConfigError, match="no address of a peer") as refused:
        split_initial_peers([f"adloco://{RUN}"])
    assert refused.value.code == "E206"


def test_the_book_keeps_the_newest_peers_and_the_ports(tmp_path):
    path = tmp_path / "peers.json"
    book = AddressBook(path)
    old = parse_peer_address(f"/ip4/203.0.113.7/tcp/1/p2p/{ALICE}")
    new = parse_peer_address(f"/ip4/203.0.113.8/tcp/2/p2p/{ALICE}")
    bob = parse_peer_address(f"/ip4/203.0.113.9/tcp/3/p2p/{BOB}")
    book.add_peers([old, bob])
    book.set_ports([ListenPort(maddr="/ip4/0.0.0.0/tcp/0", port=4001)])
    book.add_peers([new])
    again = AddressBook(path)
    assert again.peers == (new, bob)
    assert again.port("/ip4/0.0.0.0/tcp/0") == 4001
    assert again.port("/ip4/0.0.0.0/udp/0/quic-v1") is None


def test_the_book_is_bounded(tmp_path):
    book = AddressBook(tmp_path / "peers.json")
    peers = [
        parse_peer_address(f"/ip4/203.0.113.7/tcp/{n}/p2p/{ALICE[:-3]}{a}{b}{c}") for n, (a, b, c) in enumerate(_letters())
    ]
    book.add_peers(peers)
    assert AddressBook(tmp_path / "peers.json").peers == tuple(peers[:MAX_PEERS])


def test_strangers_have_a_quarter_of_the_book_and_only_what_others_leave(tmp_path):
    path = tmp_path / "peers.json"
    crowd = [_named("".join(letters)) for letters in _letters()]
    first, second = _named("zzy"), _named("zzz")
    AddressBook(path).add_peers([first, second])
    AddressBook(path).add_peers([], strangers=crowd)
    assert AddressBook(path).peers == (first, second, *crowd[:MAX_STRANGERS])
    assert AddressBook(path).strangers == tuple(crowd[:MAX_STRANGERS])
    AddressBook(path).add_peers([crowd[0]], strangers=[second, crowd[40]])
    book = AddressBook(path)
    assert book.peers == (crowd[0], first, second, crowd[40], *crowd[1:MAX_STRANGERS]), "the newest come first"
    members = [_named(f"y{a}{b}") for a in "abcdefgh" for b in "ABCDEFGH"]
    book.add_peers(members, strangers=crowd)
    assert AddressBook(path).peers == tuple(members)
    assert len(members) == MAX_PEERS


def test_a_book_of_an_earlier_version_is_read(tmp_path):
    path = tmp_path / "peers.json"
    one = _named("abc")
    path.write_bytes(b'{"peers":["%s"],"ports":[]}' % str(one).encode())
    assert AddressBook(path).peers == (one,) and AddressBook(path).strangers == ()


def _named(end):
    return parse_peer_address(f"/ip4/203.0.113.7/tcp/1/p2p/{ALICE[:-3]}{end}")


def _letters():
    return [(a, b, "x") for a in "abcdefghi" for b in "ABCDEFGH"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", json.dumps({"peers": ["x"] * 10**5, "ports": []}).encode(), b"\xff"])
def test_a_damaged_book_is_a_new_book(tmp_path, data):
    path = tmp_path / "peers.json"
    path.write_bytes(data)
    book = AddressBook(path)
    assert book.peers == ()
    book.set_ports([ListenPort(maddr="/ip4/0.0.0.0/tcp/0", port=1)])
    assert AddressBook(path).port("/ip4/0.0.0.0/tcp/0") == 1


def test_a_bucket_lets_the_burst_pass_and_then_the_rate():
    now = [0.0]
    bucket = TokenBucket(10.0, burst=5.0, clock=lambda: now[0])
    assert [bucket.try_take(1) for _ in range(6)] == [True] * 5 + [False]
    now[0] = 0.1
    assert [bucket.try_take(1) for _ in range(2)] == [True, False]
    now[0] = 100.0
    assert bucket.debt_seconds(5) == 0.0
    assert bucket.debt_seconds(1) == pytest.approx(0.1)
    assert bucket.debt_seconds(1) == pytest.approx(0.2)
    assert TokenBucket(0.0, burst=1.0).try_take(1e9)


PUBLIC, PRIVATE, LOOPBACK = "/ip4/9.9.9.9/tcp/1", "/ip4/192.168.1.5/tcp/1", "/ip4/127.0.0.1/tcp/1"
RELAYED = f"/ip4/9.9.9.9/tcp/1/p2p/{BOB}/p2p-circuit"


@pytest.mark.parametrize(
    ("own", "dialled"),
    [
        ((PUBLIC,), {PUBLIC, RELAYED}),
        ((RELAYED,), {PUBLIC, RELAYED}),
        ((PUBLIC, PRIVATE), {PUBLIC, RELAYED, PRIVATE}),  # a LAN
        ((LOOPBACK,), {PUBLIC, RELAYED, PRIVATE, LOOPBACK}),  # a swarm on one machine
        ((), {PUBLIC, RELAYED, PRIVATE, LOOPBACK}),  # client mode
    ],
)
def test_announced_addresses_lead_out_of_this_machine_and_its_network(own, dialled):
    own = [f"{address}/p2p/{ALICE}" for address in own]
    never = {
        "/ip4/169.254.169.254/tcp/80",
        "/ip6/fe80::1/tcp/80",
        "/ip4/0.0.0.0/tcp/80",
        "/ip4/224.0.0.1/udp/9",
        "/ip6/::ffff:169.254.169.254/tcp/80",  # where clouds keep a machine's secrets
        f"/ip4/169.254.169.254/tcp/80/p2p/{BOB}/p2p-circuit",
    }
    announced = {PUBLIC, RELAYED, PRIVATE, LOOPBACK, *never}
    assert {address for address in announced if leads_out(f"{address}/p2p/{BOB}", own)} == dialled


@pytest.mark.parametrize(
    "address",
    [
        f"/ip4/127.0.0.1/tcp/22/p2p/{BOB}/p2p-circuit",
        "/ip6/::ffff:127.0.0.1/tcp/22",
        "/ip6/::127.0.0.1/tcp/22",
        "/ip6/64:ff9b::7f00:1/tcp/22",
        "/ip6/2002:7f00:1::/tcp/22",
        "/ip6/::1/tcp/22",
    ],
)
def test_loopback_in_any_guise_is_dialled_by_none_that_is_not_reached_there(address):
    for own in (PUBLIC, PRIVATE, RELAYED):
        assert not leads_out(f"{address}/p2p/{BOB}", [f"{own}/p2p/{ALICE}"])
    assert leads_out(f"{address}/p2p/{BOB}", [f"{LOOPBACK}/p2p/{ALICE}"])


@pytest.mark.parametrize("address", [f"{PRIVATE}/p2p/{BOB}/p2p-circuit", "/ip6/fec0::1/tcp/22", "/dns4/localhost/tcp/22"])
def test_a_private_network_in_any_guise_is_dialled_from_within_only(address):
    assert not leads_out(f"{address}/p2p/{BOB}", [f"{PUBLIC}/p2p/{ALICE}"])
    assert leads_out(f"{address}/p2p/{BOB}", [f"{PRIVATE}/p2p/{ALICE}"])
