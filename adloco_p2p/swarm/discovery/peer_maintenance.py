"""A peer's maintenance beside training: it announces itself, refreshes its connections and compares clocks."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Collection, Sequence

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import DaemonSilent
from adloco_p2p.swarm.discovery.clock_survey import survey
from adloco_p2p.swarm.discovery.host_names import with_numbers
from adloco_p2p.swarm.discovery.join import connect_to_run
from adloco_p2p.swarm.discovery.peer_cards import PeerCards, card_of
from adloco_p2p.swarm.discovery.reachability import ping_all
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode

ANNOUNCE_SECONDS = 40.0
"""The time between two announcements, a third of a record's lifetime."""
ADDRESS_CHECK_SECONDS = 5.0
"""The time between two looks at the own addresses; one that came or went, such as that of a relay, is announced at once."""
RECONNECT_SECONDS = 10.0
"""The time between two searches for newly announced peers; shorter at first, while peers that came together announce
themselves."""
FIRST_CLOCKS_SECONDS = 10.0
CLOCKS_SECONDS = 600.0
MAX_CLOCKS = 5
"""The number of peers whose clocks are asked for."""

CLOCK = "clock"
"""The key of the warning about this machine's clock."""

Write = Callable[[telemetry.Log], None]


class PeerMaintenance:
    """Maintains one peer's announcements and connections. Its three coroutines run beside the loop until cancelled. They skip a
    turn if the p2p daemon lives and does not answer. Each raises SwarmError if it is gone."""

    def __init__(
        self,
        swarm_node: SwarmNode,
        discovery: Discovery,
        *,
        run: Digest,
        roster: Callable[[], Sequence[PeerId]],
        members: Callable[[], Collection[PeerId]],
        write: Write,
    ) -> None:
        """`members` returns all peers that ever had a seat. `write` takes events: `clock`, `peer_card`, and `warning` when a
        condition begins or ends."""
        self._swarm_node = swarm_node
        self._discovery = discovery
        self._run = run
        self._roster = roster
        self._members = members
        self._write = write
        self._cards = PeerCards(swarm_node.p2p, write)
        self._warned: set[str] = set()
        self._unreached: frozenset[PeerId] = frozenset()
        self._random = random.SystemRandom()

    async def announce(self, *, name: str, author: PeerId) -> None:
        """Announce this peer and the run, and again before the records end."""
        announced: tuple[str, ...] | None = None
        announced_at = 0.0
        shown: telemetry.PeerCard | None = None
        while True:
            with contextlib.suppress(DaemonSilent):
                addresses = await self._swarm_node.addresses()
                if addresses != announced or time.monotonic() - announced_at > ANNOUNCE_SECONDS:
                    record = await self._discovery.announce_peer(self._run, await with_numbers(addresses))
                    own = shown if record is None else card_of(record, None)
                    if own is not None and own != shown:
                        self._write(own)
                        shown = own
                    await self._discovery.announce_run(self._run, name=name, author=author, num_peers=len(self._roster()))
                    announced, announced_at = addresses, time.monotonic()
            await asyncio.sleep(ADDRESS_CHECK_SECONDS)

    async def refresh_connections(self) -> None:
        """Stay connected with the other peers of the run."""
        pause = RECONNECT_SECONDS / 8
        while True:
            await asyncio.sleep(pause)
            try:
                known = await connect_to_run(
                    self._swarm_node, self._discovery, self._run, should_retry=True, members=self._members()
                )
            except DaemonSilent:
                continue
            self._unreached = frozenset(known.unreached)
            roster = set(self._roster())
            missed = {
                f"connection to {peer}": f"{peer} cannot be reached from here: {why}"
                for peer, why in known.unreached.items()
                if peer in roster
            }
            for key in [key for key in self._warned - {CLOCK} if key not in missed]:
                self._warn(key, "connected, or gone", is_active=False)
            for key, message in missed.items():
                self._warn(key, message, is_active=True)
            await self._cards.look([record for record in known.records if record.peer in roster], known.connected)
            pause = min(2 * pause, RECONNECT_SECONDS)

    async def out_of_reach(self, peers: Sequence[PeerId]) -> tuple[PeerId, ...]:
        """Return those of `peers` that could not be reached at the last try and are not connected now, as far as the daemon
        tells."""
        doubtful = [peer for peer in peers if peer in self._unreached]
        try:
            connected = await self._swarm_node.peers_connected() if doubtful else ()
        except DaemonSilent:
            return ()
        return tuple(peer for peer in doubtful if peer not in connected)

    async def compare_clocks(self) -> None:
        """Ask some peers for their clocks now and then, write the answers, and warn if this machine's clock is off."""
        await asyncio.sleep(FIRST_CLOCKS_SECONDS)
        while True:
            connected = set[PeerId]()
            with contextlib.suppress(DaemonSilent):
                connected |= set(await self._swarm_node.peers_connected())
            others = [peer for peer in self._roster() if peer in connected]
            asked = self._random.sample(others, min(MAX_CLOCKS, len(others)))
            readings = await ping_all(self._swarm_node.p2p, asked)
            if readings:
                found = survey(readings)
                clock = telemetry.Clock(
                    offset_seconds=round(found.offset_seconds, 3),
                    uncertainty_seconds=round(found.uncertainty_seconds, 3),
                    peers=tuple(found.peers),
                    offsets_seconds=tuple(round(seconds, 3) for seconds in found.offsets_seconds),
                )
                self._write(clock)
                self._warn(CLOCK, found.in_words, is_active=found.is_off)
            await asyncio.sleep(CLOCKS_SECONDS if readings else FIRST_CLOCKS_SECONDS)

    def _warn(self, key: str, message: str, *, is_active: bool) -> None:
        """Write one event when a condition begins and one when it ends, and none in between."""
        if is_active == (key in self._warned):
            return
        (self._warned.add if is_active else self._warned.discard)(key)
        self._write(telemetry.Warning(key=key, message=message, active=is_active))
