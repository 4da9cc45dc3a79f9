"""The doctor's checks of the network, made with a throwaway identity, so that a running node is not disturbed."""

import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.core.model.protocol import PROTOCOLS, unfollowed
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.words import plural
from adloco_p2p.errors import SwarmError
from adloco_p2p.swarm.discovery.clock_survey import survey
from adloco_p2p.swarm.discovery.join import connect_to_run
from adloco_p2p.swarm.discovery.join_link import split_initial_peers
from adloco_p2p.swarm.discovery.reachability import ClockReading, Speed, ask_to_dial_back, measure_speed, ping_all
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.addresses import reach, shareable
from adloco_p2p.swarm.p2p.daemon import outgoing_address
from adloco_p2p.swarm.p2p.listening import has_open_port, is_free
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode
from adloco_p2p.views.check_report import CheckResult

MAX_ASKED = 2
"""The number of peers that are asked to dial back and to measure speed; few, because they have other work."""
MAX_PINGED = 5
JOIN_SECONDS = 5.0
"""How long initial peers that do not answer are retried."""
SLOW_BYTES_PER_SECOND = 125_000.0
_REACHED = {"public": "from outside", "relay": "through a relay", "private": "inside this network"}


async def check_network(config: PeerConfig, initial_peers: Sequence[str]) -> AsyncIterator[CheckResult]:
    """Yield one result after the other, in some ten seconds. Raises ConfigError for an invalid address."""
    linked, addresses = split_initial_peers(initial_peers)
    with tempfile.TemporaryDirectory(prefix="adloco-doctor-") as folder:
        try:
            swarm_node = await SwarmNode.start(
                workdir=Path(folder),
                config=_beside_a_node(config),
                initial_peers=[str(a) for a in addresses],
                join_timeout_seconds=JOIN_SECONDS,
            )
        except SwarmError as error:
            yield CheckResult(check="initial peers", outcome="failed", found=str(error), code=error.code)
            return
        try:
            yield _initial_peers(swarm_node, len({address.peer for address in addresses}))
            discovery = Discovery(swarm_node.dht, swarm_node.identity, wall_clock=swarm_node.clock)
            runs = [record.run for record in await discovery.list_runs()]
            for run in [linked] if linked else runs[:1]:
                await connect_to_run(swarm_node, discovery, run, should_retry=False)
            yield CheckResult(check="runs", outcome="ok", found=f"{len(runs)} announced" if runs else "none announced yet")
            readings = await ping_all(swarm_node.p2p, (await swarm_node.peers_connected())[:MAX_PINGED])
            yield _protocol(readings)
            yield _clock(readings)
            yield await _dial_back(swarm_node, readings)
            yield await _speed(swarm_node, readings)
        finally:
            await swarm_node.stop()


def _beside_a_node(config: PeerConfig) -> PeerConfig:
    """Return settings for the checks: the machine's own addresses if no process listens there, so that a forwarded port is
    tried; beside a running node, any other ports, with no announced addresses."""
    if all(has_open_port(maddr) or is_free(maddr) for maddr in config.host_maddrs):
        return config
    return replace(config, host_maddrs=tuple(map(_open_port, config.host_maddrs)), announce_maddrs=())


def _open_port(maddr: str) -> str:
    """Return the address with an open port."""
    if has_open_port(maddr):
        return maddr
    head, protocol, rest = maddr.rpartition("/tcp/") if "/tcp/" in maddr else maddr.rpartition("/udp/")
    _, separator, tail = rest.partition("/")
    return f"{head}{protocol}0{separator}{tail}"


def _initial_peers(swarm_node: SwarmNode, num_given: int) -> CheckResult:
    missing = "; ".join(f"{unreached.peer}: {unreached.reason}" for unreached in swarm_node.unreached)
    if missing:
        found = f"{num_given - len(swarm_node.unreached)} of {num_given} answer; {missing}"
        return CheckResult(check="initial peers", outcome="warning", found=found, code="E320")
    return CheckResult(check="initial peers", outcome="ok", found=f"{num_given} of {num_given} answer")


def _protocol(readings: Mapping[PeerId, ClockReading]) -> CheckResult:
    in_a_run = [reading for reading in readings.values() if reading.run]  # the others name the newest that they know
    others = sorted({reading.protocol for reading in in_a_run if unfollowed(reading.protocol)})
    if others:
        found = f"{PROTOCOLS} here, {', '.join(map(str, others))} there"
        return CheckResult(check="protocol", outcome="warning", found=found, code="E324")
    return CheckResult(check="protocol", outcome="ok", found=f"{PROTOCOLS}, {plural(len(readings), 'peer')} asked")


def _clock(readings: Mapping[PeerId, ClockReading]) -> CheckResult:
    if not readings:
        return CheckResult(check="clock", outcome="skipped", found="no peer to compare with")
    found = survey(readings)
    if found.is_off:
        return CheckResult(check="clock", outcome="warning", found=found.in_words, code="E321")
    return CheckResult(check="clock", outcome="ok", found=found.in_words)


async def _dial_back(swarm_node: SwarmNode, readings: Mapping[PeerId, ClockReading]) -> CheckResult:
    """Check whether others can connect, and name the obstacle if they cannot."""
    own = await swarm_node.addresses()
    if not own:
        return CheckResult(check="dial back", outcome="skipped", found="client mode: others are not meant to connect")
    seen = sorted({reading.observed.split("/")[2] for reading in readings.values() if reading.observed.count("/") >= 2})
    nat = f"others see {', '.join(seen) or 'nothing'}, this machine has {outgoing_address()}"
    is_translated = bool(seen) and outgoing_address() not in seen and not all(host.startswith("127.") for host in seen)
    outcome = "behind a NAT" if is_translated else "no NAT in between"
    ports = {"/".join(address.split("/")[3:]) for address in own if "/p2p-circuit" not in address}
    wanted = [*own, *(f"/ip4/{address}/{rest}" for address in seen for rest in sorted(ports) if ":" not in address)]
    refusals, tried, here = [], 0, ""
    for peer in sorted(readings):
        if tried == MAX_ASKED:
            break
        try:
            answers = await ask_to_dial_back(swarm_node.p2p, peer, list(dict.fromkeys(wanted)))
        except SwarmError as error:
            refusals.append(str(error))
            continue
        tried += 1
        reached = shareable([address for address, problem in answers.items() if problem is None])
        if reached and reach(reached[0]) != "loopback":
            found = f"reached {_REACHED[reach(reached[0])]} at {reached[0]} ({outcome})"
            return CheckResult(check="dial back", outcome="ok", found=found)
        here = here or next(iter(reached), "")
    if here:
        found = f"reached by a peer on this machine at {here}; no peer on another machine tried"
        return CheckResult(check="dial back", outcome="ok", found=found)
    if not tried:
        return CheckResult(check="dial back", outcome="skipped", found="; ".join(refusals) or "no peer to ask")
    found = f"{plural(tried, 'peer')} could not connect; {outcome}: {nat}"
    return CheckResult(check="dial back", outcome="warning", found=found, code="E322")


async def _speed(swarm_node: SwarmNode, readings: Mapping[PeerId, ClockReading]) -> CheckResult:
    speeds: dict[PeerId, Speed] = {}
    refusals = []
    for peer in sorted(readings, key=lambda peer: readings[peer].round_trip_seconds):
        if len(speeds) == MAX_ASKED:
            break
        try:
            speeds[peer] = await measure_speed(swarm_node.p2p, peer)
        except SwarmError as error:
            refusals.append(str(error))
    if not speeds:
        return CheckResult(check="speed", outcome="skipped", found="; ".join(refusals) or "no peer to ask")
    up = max(speed.up_bytes_per_second for speed in speeds.values())
    down = max(speed.down_bytes_per_second for speed in speeds.values())
    found = f"at least {up * 8 / 1e6:.1f} Mbit/s up, {down * 8 / 1e6:.1f} Mbit/s down ({plural(len(speeds), 'peer')})"
    if min(up, down) < SLOW_BYTES_PER_SECOND:
        return CheckResult(check="speed", outcome="warning", found=found, code="E323")
    return CheckResult(check="speed", outcome="ok", found=found)
