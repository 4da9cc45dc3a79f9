"""The addresses on which a peer listens: checks of the user's settings, and a choice of open ports that survives restarts."""

import socket
import time
from collections.abc import Sequence

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.swarm.p2p.address_book import AddressBook, ListenPort
from adloco_p2p.swarm.p2p.addresses import check_address

MAX_PORT_CHECKS = 8
PORT_CHECK_SECONDS = 0.25


def check_config(config: PeerConfig) -> None:
    """Raise ConfigError with every problem of the listening and announced addresses."""
    problems: list[str] = []
    for name, maddrs in (("host_maddrs", config.host_maddrs), ("announce_maddrs", config.announce_maddrs)):
        for maddr in maddrs:
            try:
                check_address(maddr)
            except ConfigError as error:
                problems.extend(f"{name}: {problem}" for problem in error.problems)
    problems.extend(
        f"announce_maddrs: {maddr!r} leaves the port open; name the port that is forwarded"
        for maddr in config.announce_maddrs
        if has_open_port(maddr)
    )
    if not config.host_maddrs and not config.client_mode:
        problems.append("host_maddrs: empty; name an address to listen on, or set client_mode")
    if problems:
        raise ConfigError(*problems)


def wait_for_ports(maddrs: Sequence[str]) -> None:
    """Wait until the ports that the user named are free; a daemon of the last start may need a moment to end. Raises
    SwarmError."""
    for _ in range(MAX_PORT_CHECKS):
        taken = [maddr for maddr in maddrs if not has_open_port(maddr) and not is_free(maddr)]
        if not taken:
            return
        time.sleep(PORT_CHECK_SECONDS)
    raise SwarmError(
        f"cannot listen on {', '.join(taken)}: in use by another program, or not an address of this machine", code="E307"
    )


def has_open_port(maddr: str) -> bool:
    return any(part in f"{maddr}/" for part in ("/tcp/0/", "/udp/0/"))


def with_port(maddr: str, port: int) -> str:
    return f"{maddr}/".replace("/tcp/0/", f"/tcp/{port}/").replace("/udp/0/", f"/udp/{port}/").rstrip("/")


def choose_ports(maddrs: Sequence[str], book: AddressBook | None) -> tuple[ListenPort, ...]:
    """Choose a free port for every address that leaves it open: that of the last start, if it is still free.

    p2pd could choose, but does not report the port if other addresses are announced.
    """
    ports = []
    for maddr in maddrs:
        if not has_open_port(maddr):
            continue
        old = book.port(maddr) if book is not None else None
        ports.append(ListenPort(maddr=maddr, port=old if old and is_free(with_port(maddr, old)) else _any_port(maddr)))
    return tuple(ports)


def is_free(maddr: str) -> bool:
    """Return whether the port is free. p2pd would not notice a taken one, because its sockets share ports (SO_REUSEPORT)."""
    try:
        _bound_port(maddr)
    except OSError:
        return False
    return True


def _any_port(maddr: str) -> int:
    try:
        return _bound_port(maddr)
    except OSError as error:
        raise ConfigError(f"host_maddrs: cannot listen on {maddr!r}: {error.strerror}") from error


def _bound_port(maddr: str) -> int:
    _, protocol, host, transport, port, *_ = maddr.split("/")
    family = socket.AF_INET6 if protocol in ("ip6", "dns6") else socket.AF_INET
    kind = socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM
    with socket.socket(family, kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as p2pd does: a port in TIME_WAIT is free
        probe.bind((host, int(port)))
        return int(probe.getsockname()[1])
