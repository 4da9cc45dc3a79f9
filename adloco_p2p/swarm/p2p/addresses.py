"""Multiaddresses as text: their syntax, the peer that they lead to, and from where they can be reached. Pure.

Their form is /ip4/1.2.3.4/tcp/4001/p2p/12D3KooW..., or through a relay /ip4/.../p2p/RELAY/p2p-circuit/p2p/12D3KooW...
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, AF_UNSPEC
from typing import Literal

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import ConfigError

MAX_ADDRESS_CHARS = 400
MAX_ADDRESSES = 16
"""The most addresses that one peer may announce."""

Reach = Literal["relay", "public", "private", "loopback"]

NAME_FAMILIES = {"dns": AF_UNSPEC, "dns4": AF_INET, "dns6": AF_INET6}
"""The protocols that name a host, with the family of the addresses that the name stands for."""
_HOST_PROTOCOLS = ("ip4", "ip6", *NAME_FAMILIES)
_PORT_PROTOCOLS = ("tcp", "udp")
_BARE_PROTOCOLS = ("quic-v1", "ws", "wss", "tls", "p2p-circuit")
_IP = ipaddress.IPv4Address | ipaddress.IPv6Address
_WRAPPERS = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
"""IPv6 networks whose last 32 bits are an IPv4 address: that of NAT64 gateways, and an obsolete form."""
_PEER_ID = re.compile(r"(12D3KooW|Qm|16Uiu2HA)[1-9A-HJ-NP-Za-km-z]{40,60}")
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_PEER_ID_FORMS = ((b"\x24\x08\x01\x12\x20", 37), (b"\x25\x08\x02\x12\x21", 38), (b"\x12\x20", 34))
"""Heads and lengths of multihashes, without the zero in front: those that hold an Ed25519 or secp256k1 key, and SHA-256."""
_DNS_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """One address of one peer."""

    transport: str
    """The part of the address before the last /p2p/."""
    peer: PeerId

    def __str__(self) -> str:
        return f"{self.transport}/p2p/{self.peer}"


def parse_peer_address(text: str) -> PeerAddress:
    """Parse the address of a peer, as users and join links give it. Raises ConfigError."""
    transport, separator, peer = text.strip().rpartition("/p2p/")
    if not separator and not text.lstrip().startswith("/"):
        accepted = (
            "accepted are a join link, adloco://..., and an address, /ip4/.../p2p/PEER-ID; copy the whole line that the other"
        )
        raise ConfigError(f"{text!r}: neither a link nor an address; {accepted} peer printed", code="E206")
    if not separator:
        raise ConfigError(f"{text!r}: ends without /p2p/PEER-ID; copy the whole line that the other peer printed", code="E206")
    if not _is_peer_id(peer):
        raise ConfigError(f"{text!r}: {peer!r} is not a PeerID", code="E206")
    if not transport or transport.endswith("/p2p"):
        raise ConfigError(f"{text!r}: there is no address before /p2p/", code="E206")
    check_address(transport)
    return PeerAddress(transport=transport, peer=PeerId(peer))


def parse_peer_addresses(texts: Iterable[str]) -> tuple[PeerAddress, ...]:
    """Parse addresses and drop duplicates. Raises ConfigError with every problem."""
    addresses: dict[PeerAddress, None] = {}
    problems: list[str] = []
    for text in texts:
        try:
            addresses[parse_peer_address(text)] = None
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(*problems, code="E206")
    return tuple(addresses)


def check_address(text: str) -> None:
    """Raise ConfigError unless `text` is an address to listen on, to announce or to dial, without a last /p2p/."""
    problem = _problem(text)
    if problem is not None:
        raise ConfigError(f"{text!r}: {problem}; an address looks like /ip4/203.0.113.7/tcp/4001", code="E206")


def reach(address: str) -> Reach:
    """Return from where an address can be reached, judged by its form. A DNS name counts as public."""
    if "/p2p-circuit" in address:
        return "relay"
    host = _host(address)
    return "public" if host is None else _reach_of(host)


def shareable(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses that others can use, the widest reach first; loopback only if there is nothing else."""
    order: tuple[Reach, ...] = ("public", "relay", "private", "loopback")
    ranked = sorted(dict.fromkeys(addresses), key=lambda address: order.index(reach(address)))
    useful = [address for address in ranked if reach(address) != "loopback"]
    return tuple((useful or ranked)[:MAX_ADDRESSES])


def leads_out(address: str, own: Sequence[str]) -> bool:
    """Return whether to dial an address that anybody may have announced, given the `own` addresses of this peer.

    An announced address of this machine or its network is dialled only if this peer can itself be reached there, because others
    must not choose the ports that are tried here. Without addresses of its own (client mode) a peer cannot judge, and dials. An
    address through a relay is judged by that of the relay, which is dialled. A name may lead anywhere, so it counts as private.
    """
    host = _host(address)
    if host is not None and (host.is_link_local or host.is_multicast or host.is_unspecified):
        return False  # not reachable from another machine
    kinds = {reach(mine) for mine in own}
    match "private" if host is None else _reach_of(host):
        case "loopback":
            return not kinds or "loopback" in kinds
        case "private":
            return not kinds or bool(kinds & {"private", "loopback"})
        case _:
            return True


def _host(address: str) -> _IP | None:
    """Return the IP address that is dialled first; None for a name."""
    parts = address.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
        return None
    found = ipaddress.ip_address(parts[2])
    return found if isinstance(found, ipaddress.IPv4Address) else _unwrapped(found)


def _unwrapped(host: ipaddress.IPv6Address) -> _IP:
    """Return the IPv4 address to which systems and gateways translate an IPv6 address, or the address itself."""
    if host.ipv4_mapped is not None:
        return host.ipv4_mapped
    if host.sixtofour is not None:
        return host.sixtofour
    is_wrapped = any(host in network for network in _WRAPPERS) and int(host) > 1
    return ipaddress.IPv4Address(int(host) & 0xFFFFFFFF) if is_wrapped else host


def _reach_of(host: _IP) -> Literal["public", "private", "loopback"]:
    if host.is_loopback:
        return "loopback"
    is_site_local = isinstance(host, ipaddress.IPv6Address) and host.is_site_local
    return "public" if host.is_global and not is_site_local else "private"


def _problem(text: str) -> str | None:
    if len(text) > MAX_ADDRESS_CHARS:
        return f"longer than {MAX_ADDRESS_CHARS} characters"
    if not text.startswith("/"):
        return "does not begin with /"
    parts = iter(text[1:].split("/"))
    protocols = []
    for protocol in parts:
        protocols.append(protocol)
        if protocol in _BARE_PROTOCOLS:
            continue
        if protocol not in (*_HOST_PROTOCOLS, *_PORT_PROTOCOLS, "p2p"):
            return f"{protocol!r} is not a protocol that is spoken here"
        value = next(parts, None)
        if value is None:
            return f"nothing after /{protocol}"
        problem = _value_problem(protocol, value)
        if problem is not None:
            return problem
    if protocols[0] not in _HOST_PROTOCOLS or len(protocols) < 2 or protocols[1] not in _PORT_PROTOCOLS:
        return "needs a host and a port"
    if any(protocol in _HOST_PROTOCOLS for protocol in protocols[1:]):
        return "has more than one host"
    return None


def _value_problem(protocol: str, value: str) -> str | None:
    if protocol in _PORT_PROTOCOLS:
        is_port = value.isascii() and value.isdecimal() and int(value) <= 65535
        return None if is_port else f"{value!r} is not a port"
    if protocol == "p2p":
        return None if _is_peer_id(value) else f"{value!r} is not a PeerID"
    if protocol.startswith("dns"):
        return None if _DNS_NAME.fullmatch(value) else f"{value!r} is not a host name"
    parse = ipaddress.IPv4Address if protocol == "ip4" else ipaddress.IPv6Address
    try:
        if "%" in value:  # a zone, after which the parser accepts anything
            raise ValueError
        parse(value)
    except ValueError:
        return f"{value!r} is not an {protocol} address"
    return None


def _is_peer_id(text: str) -> bool:
    """Return whether the text is a PeerID, and does not only look like one: p2pd does not start where the name of a relay that
    it is given is no multihash, and others choose that name."""
    if not _PEER_ID.fullmatch(text):
        return False
    number = 0
    for digit in text:
        number = number * 58 + _BASE58.index(digit)
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return any(len(data) == size and data.startswith(head) for head, size in _PEER_ID_FORMS)
