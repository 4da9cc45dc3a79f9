"""Starting and ending p2pd: on the ports of the last life where they are free, more than once where it has to be.

A slow or busy machine needs longer than hivemind's 15 seconds, and a port of an earlier life may be free only a moment later;
so the limit is a setting, and a failed start is repeated after a pause that doubles.
"""

import asyncio
import logging
import random
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError

from adloco_p2p.config.peer import PeerConfig
from adloco_p2p.errors import SwarmError
from adloco_p2p.swarm.address_book import AddressBook
from adloco_p2p.swarm.addresses import PeerAddress, reach
from adloco_p2p.swarm.daemon import IDLE_SECONDS
from adloco_p2p.swarm.hivemind_patches import daemon_process
from adloco_p2p.swarm.listening import choose_ports, wait_for_ports, with_port

MAX_STARTS = 4
_RANDOM = random.SystemRandom()
FIRST_PAUSE_SECONDS = 0.5
"""Between two starts; doubles, and up to half as long again by chance."""
STOP_TIMEOUT_SECONDS = 5.0
ANYWHERE = ("192.0.2.1", 9)
"""An address for documentation: asking the system how it would be reached sends nothing."""

_log = logging.getLogger(__name__)


async def start_daemon(
    daemon: type[P2P],
    config: PeerConfig,
    key: Path,
    book: AddressBook,
    relays: Sequence[PeerAddress],
    *,
    is_public: bool = False,
) -> P2P:
    """p2pd with this identity; peers that know `relays` may be asked to relay. With `is_public` it takes its own word for being
    reachable and relays from the first moment; else it asks others first. Raises SwarmError."""
    deadline = time.monotonic() + config.daemon_start_seconds
    is_local = all(reach(maddr) == "loopback" for maddr in config.host_maddrs)
    is_relayed = config.use_auto_relay and bool(relays) and not is_local and not is_public
    wanted = () if config.client_mode else config.host_maddrs
    for attempt in range(1, MAX_STARTS + 1):
        ports = choose_ports(wanted, book if attempt == 1 else None)
        chosen = {listen.maddr: listen.port for listen in ports}
        maddrs = [with_port(maddr, chosen[maddr]) if maddr in chosen else maddr for maddr in wanted]
        try:
            await asyncio.to_thread(wait_for_ports, wanted)
            p2p = await daemon.create(
                initial_peers=None,  # p2pd gives up if its bootstrap is dead: we dial, try again, and name who is missing
                announce_maddrs=list(config.announce_maddrs) or None,
                auto_nat=not is_local,
                check_if_identity_free=False,  # hivemind's check reads RSA keys only; `host.py` has ours
                conn_manager=True,
                dht_mode="client" if config.client_mode else "server",
                force_reachability="public" if is_public else None,
                host_maddrs=maddrs or None,
                identity_path=str(key),
                idle_timeout=IDLE_SECONDS,
                nat_port_map=not is_local,
                no_listen=config.client_mode,
                startup_timeout=max(1.0, deadline - time.monotonic()),
                tls=True,
                trusted_relays=[str(address) for address in relays] if is_relayed else None,
                use_auto_relay=is_relayed,
                use_ipfs=False,
                use_relay=config.use_relay,
            )
        except (P2PDaemonError, OSError) as error:
            pause_seconds = FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) * (1 + _RANDOM.random() / 2)
            if attempt == MAX_STARTS or time.monotonic() + pause_seconds >= deadline:
                raise _does_not_start(daemon, error, f", listening on {', '.join(maddrs)}") from error
            _log.warning("p2p daemon did not start, attempt %d of %d: %s", attempt, MAX_STARTS, error)
            await asyncio.sleep(pause_seconds)
        else:
            book.set_ports(ports)
            return p2p
    raise AssertionError("the last attempt either returns or raises")


async def start_anonymous(daemon: type[P2P], *, start_seconds: float) -> P2P:
    """p2pd with a throwaway identity that nobody can dial: to look at the swarm from outside. Raises SwarmError."""
    try:
        return await daemon.create(
            auto_nat=False,
            dht_mode="client",
            host_maddrs=None,
            idle_timeout=IDLE_SECONDS,
            nat_port_map=False,
            no_listen=True,
            startup_timeout=start_seconds,
        )
    except (P2PDaemonError, OSError) as error:
        raise _does_not_start(daemon, error, "") from error


async def stop_daemon(p2p: P2P) -> None:
    """It is gone when this returns."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
            await p2p.shutdown()
    except TimeoutError:
        daemon_process(p2p).kill()
        await daemon_process(p2p).wait()


def has_public_address(config: PeerConfig) -> bool:
    """Whether the addresses that this peer would tell others are public ones, as far as the system can tell."""
    if config.announce_maddrs:
        return any(reach(maddr) == "public" for maddr in config.announce_maddrs)
    listened = {reach(maddr) for maddr in config.host_maddrs if not _is_wildcard(maddr)}
    if any(_is_wildcard(maddr) for maddr in config.host_maddrs):
        listened.add(reach(f"/ip4/{outgoing_address()}/tcp/1"))
    return "public" in listened


def outgoing_address() -> str:
    """The IPv4 address from which this machine reaches the internet; that of loopback where it has no way there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ANYWHERE)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _is_wildcard(maddr: str) -> bool:
    return maddr.startswith(("/ip4/0.0.0.0/", "/ip6/::/"))


def _does_not_start(daemon: type[P2P], error: Exception, where: str) -> SwarmError:
    said = f" ({daemon.first_words})" if daemon.first_words else ""
    return SwarmError(f"the p2p daemon does not start{where}: {error}{said}", code="E305")
