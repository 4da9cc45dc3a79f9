"""The libp2p node of a peer: the p2p daemon, the DHT node and the addresses, all in the node's own event loop.

hivemind's own DHT object would fork a process for the DHT; here `DHTNode` runs in this loop, on this daemon. All RPCs go
through `SwarmNode.p2p`, and nothing is left over when the process dies.

Two processes with one identity would confuse all peers that talk to them. The workdir's lock prevents that within one workdir.
Because the key may have been copied elsewhere, `start` asks the swarm: an anonymous daemon dials our PeerID through the peers
that we are about to join, and if a peer answers with our key, the start fails. That takes about 0.2 s, and only if the key is
not new. It does not find a first process that listens nowhere (client mode).
"""

import asyncio
import contextlib
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError, P2PHandlerError
from hivemind.proto import dht_pb2
from hivemind.utils.logging import use_hivemind_log_handler

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import ConfigError, DaemonSilent, SwarmError
from adloco_p2p.swarm.p2p.address_book import AddressBook
from adloco_p2p.swarm.p2p.addresses import PeerAddress, parse_peer_address, parse_peer_addresses, reach, shareable
from adloco_p2p.swarm.p2p.daemon import (
    STOP_TIMEOUT_SECONDS,
    daemon_class,
    has_public_address,
    make_socket_directory,
    remove_socket_directory,
    start_anonymous,
    start_daemon,
    stop_daemon,
)
from adloco_p2p.swarm.p2p.dht_clock import DhtClock, correction
from adloco_p2p.swarm.p2p.dht_nodes import bound_nodes
from adloco_p2p.swarm.p2p.dht_requests import RequestGate
from adloco_p2p.swarm.p2p.dht_storage import bound_storage
from adloco_p2p.swarm.p2p.dialling import DIAL_TIMEOUT_SECONDS, attempt, dial, dial_with_retries, first_reason
from adloco_p2p.swarm.p2p.hivemind_patches import TolerantReader, connect, daemon_process, reading_task, set_dht_clock
from adloco_p2p.swarm.p2p.identity import Identity
from adloco_p2p.swarm.p2p.listening import check_config

JOIN_TIMEOUT_SECONDS = 20.0
"""How long unreachable initial peers are retried, because all peers may be starting at the same moment."""
NOTICE_SECONDS = 3.0
"""When the user is told that nobody has answered yet. A peer on another continent answers within one or two."""
DHT_TIMEOUT_SECONDS = 3.0
"""A DHT request that is not answered within this time is lost."""
REDIAL_SECONDS = 1.0
MAX_NAMED = 6
"""The most addresses that a line names, as many as a join link has."""
MAX_ROUTING_CHECKS = 50
ROUTING_CHECK_SECONDS = 0.02
CLOCK_ADVICE = "set this machine's clock (NTP)"
NETWORK_ERRORS = (TimeoutError, P2PDaemonError, P2PHandlerError, OSError, asyncio.IncompleteReadError)
_NO_ROUTERS_YET = "failed to find any peer in table"
"""The error of libp2p's routing while its table is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreached:
    """A peer that could not be used at the start, and the reason in words."""

    peer: PeerId
    addresses: tuple[str, ...]
    reason: str


class SwarmNode:
    """A started peer of the network. Made by `start`, ended by `stop`."""

    def __init__(
        self,
        *,
        p2p: P2P,
        dht: DHTNode,
        clock: DhtClock,
        identity: Identity,
        book: AddressBook,
        sockets: Path,
        config: PeerConfig,
    ) -> None:
        self.p2p = p2p
        self.dht = dht
        self.clock = clock
        self.identity = identity
        self.me = identity.peer_id
        self.unreached: tuple[Unreached, ...] = ()
        """Initial peers that did not answer at the start."""
        self._book = book
        self._sockets = sockets
        self._config = config

    @classmethod
    async def start(
        cls,
        *,
        workdir: Path,
        config: PeerConfig,
        initial_peers: Sequence[str] = (),
        join_timeout_seconds: float = JOIN_TIMEOUT_SECONDS,
        is_helper: bool = False,
        may_begin_alone: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> "SwarmNode":
        """Listen, and join the DHT through `initial_peers` and the peers of the last start.

        With `is_helper`, a peer with a public address relays from the first moment. The caller has created and locked
        `workdir`, which holds identity.key and peers.json. With initial peers the start fails only if no peer at all can be
        reached, peers of the last start included; without them, or with `may_begin_alone`, the peer then begins alone. It fails
        before `join_timeout_seconds` where that is certain. `say` gets a text about peers that have not answered, while they
        are called again.

        Raises ConfigError (an address), StorageError (the workdir), SwarmError (no peer is there, the clock is off, the daemon
        does not start, or the identity is in use elsewhere).
        """
        use_hivemind_log_handler("nowhere")  # its messages go where ours go, and not in colour over the view
        logging.getLogger("asyncio").addFilter(_is_worth_saying)
        given = parse_peer_addresses(initial_peers)
        check_config(config)
        is_new_identity = not (workdir / "identity.key").exists()
        identity = Identity.load_or_create(workdir / "identity.key")
        book = AddressBook(workdir / "peers.json")
        others = [address for address in dict.fromkeys([*given, *book.peers]) if address.peer != identity.peer_id]
        notice = _Notice(say, f"; trying for {join_timeout_seconds:.0f} s" if given else "")
        sockets = make_socket_directory(workdir)
        daemon = daemon_class(sockets)
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(remove_socket_directory, sockets)
            if others and not is_new_identity:
                await _refuse_second_life(daemon, identity.peer_id, others, config.daemon_start_seconds, notice)
            p2p = await start_daemon(
                daemon, config, workdir / "identity.key", book, others, is_public=is_helper and has_public_address(config)
            )
            undo.push_async_callback(stop_daemon, p2p)
            assert str(p2p.peer_id) == identity.peer_id
            clock = DhtClock()
            dht = await _dht_on(p2p, clock, client_mode=config.client_mode)
            host = cls(p2p=p2p, dht=dht, clock=clock, identity=identity, book=book, sockets=sockets, config=config)
            await host._join(given, others, join_timeout_seconds, may_begin_alone=may_begin_alone, notice=notice)
            undo.pop_all()
        return host

    async def stop(self) -> None:
        """Leave the network. The daemon is gone when this returns."""
        if daemon_process(self.p2p).returncode is None:  # a dead daemon would not answer
            with contextlib.suppress(P2PDaemonError, OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                    await self.dht.shutdown()
        await stop_daemon(self.p2p)
        remove_socket_directory(self._sockets)

    async def watch_daemon(self, *, remedy: str = "start again") -> NoReturn:
        """Watch the daemon until cancelled. Raises SwarmError once it, or the connection to it, has ended."""
        ends = [asyncio.ensure_future(daemon_process(self.p2p).wait()), reading_task(self.p2p)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ends[0].cancel()
        raise SwarmError(f"the p2p daemon ended; {remedy}", code="E306")

    async def addresses(self) -> tuple[str, ...]:
        """Return full addresses under which others may reach this peer, the widest reach first; loopback only if there is no
        other. Raises DaemonSilent, and SwarmError if the daemon is gone."""
        try:
            with self._asking_daemon():
                maddrs = await self.p2p.get_visible_maddrs(latest=True)
        except ValueError:  # hivemind raises this if there are none, as in client mode without a relay
            return ()
        return shareable([str(maddr) for maddr in maddrs])

    async def describe_reachability(self) -> str:
        """Describe to the user which peers can reach this one, and the remedy if these are too few."""
        addresses = await self.addresses()
        reaches = {reach(address) for address in addresses}
        if self._config.client_mode:
            return "client mode: others cannot connect to this peer; it averages through peers that it can connect to"
        if not addresses:
            return "not listening on any address: others cannot connect to this peer"
        if self._config.announce_maddrs:
            return (
                f"announced to others as {', '.join(self._config.announce_maddrs)}; only they can check whether that leads here"
            )
        if "public" in reaches:
            return f"reachable from the internet, if no firewall is in between, at {addresses[0]}"
        if "relay" in reaches:
            return f"behind a NAT, reachable through a relay at {addresses[0]}"
        if "private" in reaches:
            return (
                f"reachable in the local network at {addresses[0]}; from the internet by a port that the router opens (UPnP) "
                "or forwards (--announce-maddrs), or else by a relay, which this node looks for"
            )
        return f"reachable from this machine only, at {addresses[0]}; listen on /ip4/0.0.0.0/tcp/PORT for others"

    async def peers_connected(self) -> tuple[PeerId, ...]:
        """Return the peers with an open connection to the daemon, sorted. Raises DaemonSilent, and SwarmError if the daemon is
        gone."""
        with self._asking_daemon():
            infos = await self.p2p.list_peers()
        return tuple(sorted(PeerId(str(info.peer_id)) for info in infos))

    @contextlib.contextmanager
    def _asking_daemon(self) -> Iterator[None]:
        try:
            yield
        except (P2PDaemonError, OSError, asyncio.IncompleteReadError) as error:
            words = f"the p2p daemon does not answer: {error}"
            lives = daemon_process(self.p2p).returncode is None
            raise (DaemonSilent(words) if lives else SwarmError(words, code="E306")) from error

    async def connect(self, addresses: Iterable[str], *, should_retry: bool = True) -> Mapping[PeerId, str | None]:
        """Connect to the peers at these full addresses, all at once. Return the problem of each peer in words, or None.

        `should_retry` dials three times, which takes up to half a minute if a peer does not answer. It is worth connecting
        before a round, because a stream to an unknown peer first has to find it. Addresses come from others, so those that
        cannot be parsed are ignored.
        """
        return await (dial_with_retries if should_retry else dial)(self.p2p, self._others(addresses))

    async def dial_from_outside(self, addresses: Sequence[PeerAddress]) -> Mapping[str, str | None]:
        """Dial one peer's addresses as a stranger would, by a daemon without peers, up to the first that leads there, since the
        daemon then has a path. Return the problem of each address, or None. Raises SwarmError."""
        problems: dict[str, str | None] = {}
        sockets = Path(tempfile.mkdtemp(prefix="adloco-", dir=self._sockets.parent))
        try:
            stranger = await start_anonymous(daemon_class(sockets), start_seconds=self._config.daemon_start_seconds)
            try:
                for address in addresses:
                    problem = (await dial(stranger, [address]))[address.peer]
                    problems[str(address)] = problem
                    if problem is None:
                        break
            finally:
                await stop_daemon(stranger)
        finally:
            remove_socket_directory(sockets)
        return problems

    def remember(self, addresses: Iterable[str], *, strangers: Iterable[str] = ()) -> None:
        """Keep these addresses of living peers for the next start, when the bootstrap may be gone; those of strangers as far as
        the book has room for strangers. Raises StorageError."""
        self._book.add_peers(self._others(addresses), strangers=self._others(strangers))

    def _others(self, addresses: Iterable[str]) -> list[PeerAddress]:
        """Return the addresses that can be parsed and are not ours."""
        known: list[PeerAddress] = []
        for address in addresses:
            with contextlib.suppress(ConfigError):
                known.append(parse_peer_address(address))
        return [address for address in known if address.peer != self.me]

    async def _join(
        self,
        given: Sequence[PeerAddress],
        others: Sequence[PeerAddress],
        timeout_seconds: float,
        *,
        may_begin_alone: bool,
        notice: "_Notice",
    ) -> None:
        """Connect to the others and join their DHT. Raises SwarmError if `given` names peers, none of the others can be used,
        and the peer may not begin alone."""
        deadline = time.monotonic() + timeout_seconds
        problems: dict[PeerId, str] = {}
        patience = DIAL_TIMEOUT_SECONDS
        while others:
            async with notice.of_silence(others):
                dialled = await attempt(self.p2p, others, timeout_seconds=patience)
            failures = {peer: failure for peer, failure in dialled.items() if failure is not None}
            problems = {peer: first_reason(problems.get(peer), failure.reason) for peer, failure in failures.items()}
            reached = [peer for peer in dialled if peer not in problems]
            problems |= await self._enter_dht(reached)
            members = [peer for peer in reached if peer not in problems]
            if members:
                named, unknown = {address.peer for address in given}, {address.peer for address in self._book.strangers}
                known = [address for address in others if address.peer in members]
                self._book.add_peers(address for address in known if address.peer in named or address.peer not in unknown)
                break
            is_certain = len(failures) == len(dialled) and all(failure.is_another for failure in failures.values())
            if not given or is_certain:
                break
            notice.tell(f"no known peer answers yet{notice.rest}:\n{_lines(_unreached(others, problems))}")
            if time.monotonic() + REDIAL_SECONDS > deadline:
                break
            await asyncio.sleep(REDIAL_SECONDS)
            patience = min(DIAL_TIMEOUT_SECONDS, max(REDIAL_SECONDS, deadline - time.monotonic()))
        self.unreached = _unreached(others, problems)
        asked = {address.peer for address in others}
        if given and asked and asked <= set(problems):
            is_clock = all(CLOCK_ADVICE in unreached.reason for unreached in self.unreached)
            if may_begin_alone and not is_clock:
                return
            raise SwarmError(
                f"none of the known peers can be used:\n{_lines(self.unreached)}", code="E308" if is_clock else "E302"
            )

    async def _enter_dht(self, reached: Sequence[PeerId]) -> dict[PeerId, str]:
        """Ping the reached peers' DHT nodes, and look for the nearest nodes. Return the problems by peer."""
        problems: dict[PeerId, str] = {}
        await self._set_clock(reached)

        async def ping(peer: PeerId) -> None:
            try:
                node = await self.dht.protocol.call_ping(PeerID.from_base58(peer), validate=True, strict=True)
            except ValidationError as error:
                problems[peer] = f"{error}; {CLOCK_ADVICE}" if "time" in str(error) else str(error)
            else:
                if node is None:
                    problems[peer] = "connected, but there is no DHT behind it"

        await asyncio.gather(*(ping(peer) for peer in reached))
        if len(problems) < len(reached):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DHT_TIMEOUT_SECONDS):
                    await self.dht.find_nearest_nodes([self.dht.node_id])
        return problems

    async def _set_clock(self, reached: Sequence[PeerId]) -> None:
        """Set the DHT's clock to the median of the reached peers' clocks; see `dht_clock.py`."""

        async def offset_seconds(peer: PeerId) -> float | None:
            asked = self.clock()
            stub = self.dht.protocol.get_stub(PeerID.from_base58(peer))
            try:
                reply = await stub.rpc_ping(dht_pb2.PingRequest(), timeout=DHT_TIMEOUT_SECONDS)
            except NETWORK_ERRORS:
                return None  # the ping that follows reports the problem
            return float(reply.dht_time) - (asked + self.clock()) / 2 if reply.dht_time else None

        measured = await asyncio.gather(*(offset_seconds(peer) for peer in reached))
        if seconds := correction(seconds for seconds in measured if seconds is not None):
            self.clock.shift(seconds)


async def _dht_on(p2p: P2P, clock: DhtClock, *, client_mode: bool) -> DHTNode:
    """Begin a DHT that follows the clock and is bounded against what others store."""
    set_dht_clock(clock)
    dht = await DHTNode.create(
        p2p,
        client_mode=client_mode,
        record_validator=TolerantReader(),
        authorizer=RequestGate(time.monotonic),
        wait_timeout=DHT_TIMEOUT_SECONDS,
        cache_locally=False,  # every search of ours is for the latest records
        cache_nearest=0,
        cache_refresh_before_expiry=0,
        cache_on_store=False,
    )
    bound_storage(dht, clock)
    bound_nodes(dht)
    return dht


class _Notice:
    """Tells the user, once, that nobody has answered yet."""

    def __init__(self, say: Callable[[str], None], rest: str) -> None:
        """`rest`: the words for how long other peers are tried."""
        self.rest = rest
        self._say = say
        self._is_told = False

    def tell(self, words: str) -> None:
        if not self._is_told:
            self._is_told = True
            self._say(words)

    @contextlib.asynccontextmanager
    async def of_silence(self, addresses: Sequence[PeerAddress]) -> AsyncIterator[None]:
        """Tell it when NOTICE_SECONDS are over, and the block is not."""
        named = ", ".join(dict.fromkeys(address.transport for address in addresses[:MAX_NAMED]))
        more = f" and {len(addresses) - MAX_NAMED} more" if len(addresses) > MAX_NAMED else ""
        words = f"no answer from {named}{more} yet{self.rest}"
        timer = asyncio.get_running_loop().call_later(NOTICE_SECONDS, self.tell, words)
        try:
            yield
        finally:
            timer.cancel()


def _unreached(addresses: Sequence[PeerAddress], problems: Mapping[PeerId, str]) -> tuple[Unreached, ...]:
    return tuple(
        Unreached(peer=peer, addresses=tuple(a.transport for a in addresses if a.peer == peer), reason=reason)
        for peer, reason in problems.items()
    )


def _lines(unreached: Sequence[Unreached]) -> str:
    return "\n".join(f"  {', '.join(each.addresses)} ({each.peer}): {each.reason}" for each in unreached)


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Return False for the message that hivemind's DHT search (`dht/traverse.py`) forgot the task that awaits its end."""
    message = record.getMessage()
    return not ("Task was destroyed" in message and "Event.wait()" in message)


async def _refuse_second_life(
    daemon: type[P2P], me: PeerId, others: Sequence[PeerAddress], start_seconds: float, notice: _Notice
) -> None:
    """Raise SwarmError if a peer in the swarm answers with our key."""
    anonymous = await start_anonymous(daemon, start_seconds=start_seconds)
    try:
        async with notice.of_silence(others):
            dialled = await dial(anonymous, others)
        if all(problem is not None for problem in dialled.values()):
            return  # joining will report the problems
        try:
            async with asyncio.timeout(DHT_TIMEOUT_SECONDS):
                for _ in range(MAX_ROUTING_CHECKS):
                    if await _is_routed(anonymous, me):
                        break
                    await asyncio.sleep(ROUTING_CHECK_SECONDS)
                else:
                    return
        except (TimeoutError, P2PDaemonError, OSError, asyncio.IncompleteReadError):
            return
    finally:
        await stop_daemon(anonymous)
    raise SwarmError(
        f"another process takes part with this peer's identity ({me}). Stop it, or give each process a workdir of its own; "
        "identity.key must not be copied",
        code="E309",
    )


async def _is_routed(p2p: P2P, peer: PeerId) -> bool:
    """Connect to a peer through the peers that it is connected to. Return False while the daemon has not yet learned that these
    route, which takes a moment after it has connected to them."""
    try:
        await connect(p2p, peer, [])
    except P2PDaemonError as error:
        if _NO_ROUTERS_YET in str(error):
            return False
        raise
    return True
