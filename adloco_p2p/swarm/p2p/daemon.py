"""hivemind's P2P daemon (p2pd, a Go process) as a child that cannot outlive this process and gets no Ctrl-C.

hivemind starts p2pd by asyncio's create_subprocess_exec without a hook for the child's side, but a subclass can change the list
of arguments. Ours puts a launcher of five lines in front of them, which asks the kernel to kill it with its parent
(PR_SET_PDEATHSIG survives exec) and then becomes p2pd. The launcher also leaves our process group, because a Ctrl-C in the
terminal must reach this process alone, which still has to send its leave message through p2pd.
The alternatives are worse: `setpriv --pdeathsig` is missing on small systems; a preexec_fn would need asyncio's function
replaced for all callers for a while, and runs Python between fork and exec. On kernels without PR_SET_PDEATHSIG (macOS), p2pd
ends by itself IDLE_SECONDS after its last connection, which is ours, is gone.
The kernel sends the signal when the THREAD that started the child ends, so a node must start in a thread that lives as long as
it does.

The daemon's unix sockets lie in one directory per workdir, so that sockets of a killed process can be removed with certainty.
"""

import asyncio
import contextlib
import logging
import os
import random
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.errors import StorageError, SwarmError
from adloco_p2p.swarm.p2p.address_book import AddressBook
from adloco_p2p.swarm.p2p.addresses import PeerAddress, reach
from adloco_p2p.swarm.p2p.hivemind_patches import check_version, control_of, daemon_process, patch
from adloco_p2p.swarm.p2p.listening import choose_ports, wait_for_ports, with_port

IDLE_SECONDS = 30.0
"""p2pd ends this long after its last client has disconnected."""
REAP_SECONDS = 2.0
"""The time limit for a killed daemon to be gone."""
_MAX_SOCKET_PATH_BYTES = 100
"""The longest path of a unix socket used here; the limit is 107 bytes on Linux and 103 on macOS."""
_LONGEST_SOCKET_NAME = "p2pclient-xxxxxxxxxxx.sock"
_LAUNCHER = """
import ctypes, os, signal, sys
os.setsid()
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone already")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""1 is PR_SET_PDEATHSIG of linux/prctl.h. If the parent died before that call, the launcher has another parent by now."""
_DETACHER = """
import os, sys
os.setsid()
os.execv(sys.argv[2], sys.argv[2:])
"""


def launcher() -> list[str]:
    """Return the command that goes in front of p2pd's arguments. It runs isolated and without site packages, so it starts in
    about 15 ms."""
    source = _LAUNCHER if sys.platform == "linux" else _DETACHER
    return [sys.executable, "-I", "-S", "-c", source, str(os.getpid())]


def daemon_class(sockets: Path) -> type[P2P]:
    """Return a subclass of hivemind's P2P whose daemon ends with this process, whose sockets are in `sockets`, and whose
    connection survives callers that stop waiting (`hivemind_patches.py`)."""

    class Daemon(P2P):  # type: ignore[misc]  # hivemind is not typed
        _UNIX_SOCKET_PREFIX = f"/unix{sockets}/"
        first_words: str | None = None
        """The first line of the latest daemon's output. hivemind reports the last, which for a Go panic is a line number."""

        @classmethod
        async def create(cls, *args: Any, **kwargs: Any) -> P2P:
            check_version()
            daemon = await super().create(*args, **kwargs)
            patch(control_of(daemon))
            return daemon

        @staticmethod
        def _make_process_args(*args: Any, **kwargs: Any) -> Sequence[str]:
            Daemon.first_words = None
            return [*launcher(), *P2P._make_process_args(*args, **kwargs)]

        @staticmethod
        def _log_p2pd_message(line: str) -> None:
            Daemon.first_words = Daemon.first_words or line
            P2P._log_p2pd_message(line)

    return Daemon


def make_socket_directory(workdir: Path) -> Path:
    """Make an empty directory for the sockets of this workdir. The workdir must be locked, because daemons and sockets of
    another process with it are removed. Raises StorageError."""
    name = f"adloco-{os.getuid()}-{sha256(os.fsencode(workdir.resolve())).hexdigest()[:12]}"
    directory = Path(tempfile.gettempdir()) / name
    if len(os.fsencode(directory / _LONGEST_SOCKET_NAME)) > _MAX_SOCKET_PATH_BYTES:
        directory = Path("/tmp") / name
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        info = directory.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
            raise StorageError(f"{directory}: not ours alone; remove it")
        reap_orphans(directory)
        for left_behind in directory.iterdir():
            left_behind.unlink()
    except OSError as error:
        raise StorageError(f"{directory}: cannot be used for unix sockets: {error.strerror}") from error
    return directory


def reap_orphans(directory: Path) -> tuple[int, ...]:
    """End our user's daemons whose sockets are in this directory, wait until they are gone, and return their process ids.

    Daemons that the kernel did not end with their parent would hold the peer's port and answer in its name. Without /proc
    (macOS) none is found; there they end by themselves after IDLE_SECONDS.
    """
    mark = f"-listen=/unix{directory}/".encode()
    orphans = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_daemon = entry.stat().st_uid == os.getuid() and any(
                word.startswith(mark) for word in (entry / "cmdline").read_bytes().split(b"\0")
            )
        except OSError:  # the process has just ended, or we may not read it
            continue
        if is_daemon:
            orphans.append(int(entry.name))
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + REAP_SECONDS
    while any(Path(f"/proc/{pid}/exe").exists() for pid in orphans) and time.monotonic() < deadline:
        time.sleep(0.01)
    return tuple(sorted(orphans))


def remove_socket_directory(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


MAX_STARTS = 4
_RANDOM = random.SystemRandom()
FIRST_PAUSE_SECONDS = 0.5
"""The first pause between two starts. It doubles each time, and is up to half as long again at random."""
STOP_TIMEOUT_SECONDS = 5.0
ANYWHERE = ("192.0.2.1", 9)
"""An address reserved for documentation. Asking the system for the route to it sends nothing."""
logger = logging.getLogger(__name__)


async def start_daemon(
    daemon: type[P2P],
    config: PeerConfig,
    key: Path,
    book: AddressBook,
    relays: Sequence[PeerAddress],
    *,
    is_public: bool = False,
) -> P2P:
    """Start p2pd with this identity; the peers in `relays` may be asked to relay. With `is_public` it counts itself as
    reachable and relays from the first moment; otherwise it asks others first. Raises SwarmError."""
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
                initial_peers=None,  # p2pd gives up if its bootstrap is dead, so we dial, retry, and name the missing peers
                announce_maddrs=list(config.announce_maddrs) or None,
                auto_nat=not is_local,
                check_if_identity_free=False,  # hivemind's check reads RSA keys only; ours is in `swarm_node.py`
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
            logger.warning("p2p daemon did not start, attempt %d of %d: %s", attempt, MAX_STARTS, error)
            await asyncio.sleep(pause_seconds)
        else:
            book.set_ports(ports)
            return p2p
    raise AssertionError("the last attempt either returns or raises")


async def start_anonymous(daemon: type[P2P], *, start_seconds: float) -> P2P:
    """Start p2pd with a throwaway identity that cannot be dialled, to look at the swarm from outside. Raises SwarmError."""
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
    """Stop a daemon, which is gone when this returns."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
            await p2p.shutdown()
    except TimeoutError:
        daemon_process(p2p).kill()
        await daemon_process(p2p).wait()


def has_public_address(config: PeerConfig) -> bool:
    """Return whether this peer would announce a public address, as far as the system shows."""
    if config.announce_maddrs:
        return any(reach(maddr) == "public" for maddr in config.announce_maddrs)
    listened = {reach(maddr) for maddr in config.host_maddrs if not _is_wildcard(maddr)}
    if any(_is_wildcard(maddr) for maddr in config.host_maddrs):
        listened.add(reach(f"/ip4/{outgoing_address()}/tcp/1"))
    return "public" in listened


def outgoing_address() -> str:
    """Return the IPv4 address from which this machine reaches the internet, or that of loopback if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ANYWHERE)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _is_wildcard(maddr: str) -> bool:
    return maddr.startswith(("/ip4/0.0.0.0/", "/ip6/::/"))


def _does_not_start(daemon: type[P2P], error: Exception, where: str) -> SwarmError:
    output = f" ({daemon.first_words})" if daemon.first_words else ""
    return SwarmError(f"the p2p daemon does not start{where}: {error}{output}", code="E305")
