"""Joining a run: finding its digest, its manifest and its peers."""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from adloco_p2p.core.model.protocol import unfollowed
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.model.words import plural
from adloco_p2p.errors import ConfigError, ProtocolOutgrown, RunNotHeld, SwarmError
from adloco_p2p.swarm.discovery.manifest import SignedManifest, fetch_manifest
from adloco_p2p.swarm.discovery.reachability import ping_all
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.addresses import leads_out
from adloco_p2p.swarm.p2p.dht_records import PeerRecord, RunRecord
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode

DISCOVERY_SECONDS = 60.0
"""How long a joiner looks for a run, and for its manifest; the first peer of a run answers once its model is built."""
LOOK_SECONDS = 1.0
NOTICE_SECONDS = 5.0
"""When the user is told what has not been found yet."""
NOT_HELD_SECONDS = 10.0
"""How long peers are asked that all answer not to have the run: one of them may know others that have it."""
PEERS_ASKED = 5
"""The number of peers that are asked which protocol the run follows now."""
MAX_OTHERS_DIALLED = 8
"""Announced peers without a known seat that are dialled at each look. Anybody can announce any number of names with addresses
of third parties, and all peers of the run find all of them."""
_RANDOM = random.SystemRandom()

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTarget:
    """The user's arguments that lead to a run."""

    initial_peers: tuple[str, ...]
    """Addresses and join links; empty for the first peer of a run."""
    run: str | None
    """The digest of the run, or its beginning; needed where the DHT holds several runs."""
    patience_seconds: float = DISCOVERY_SECONDS
    """How long the run is looked for."""


async def choose_run(
    discovery: Discovery, *, wanted: str | None, seconds: float = DISCOVERY_SECONDS, say: Say = lambda _: None
) -> Digest:
    """Return the run to join, found within `seconds`; a full digest is taken without a search. `say` gets a text while the
    search goes on. Raises ConfigError and SwarmError."""
    if wanted is not None and len(wanted) == 64:
        return Digest(wanted)
    begun = time.monotonic()
    is_told = False
    while True:
        records = [r for r in await discovery.list_runs() if wanted is None or r.run.startswith(wanted)]
        if len(records) == 1:
            return records[0].run
        if len(records) > 1:
            raise ConfigError("several runs are known here; choose one with --run ID:", *map(_describe, records), code="E205")
        named = f"no run {wanted}" if wanted is not None else "no run"
        if not is_told and time.monotonic() >= begun + NOTICE_SECONDS:
            is_told = True
            say(f"{named} is announced yet by the peers that were reached; looking for {seconds:.0f} s")
        if time.monotonic() > begun + seconds:
            raise SwarmError(f"{named} is announced by the peers that were reached; is its first peer up?", code="E303")
        await asyncio.sleep(LOOK_SECONDS)


def _describe(record: RunRecord) -> str:
    return f"  --run {record.run[:16]}   {record.name}, {plural(record.num_peers, 'peer')}, by {record.author}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConnections:
    """The announced peers of a run, without this one."""

    connected: tuple[PeerId, ...]
    """The connected peers, sorted."""
    unreached: Mapping[PeerId, str]
    """The peers that were dialled in vain, with the reason in words."""
    records: tuple[PeerRecord, ...]


async def connect_to_run(
    swarm_node: SwarmNode,
    discovery: Discovery,
    run: Digest,
    *,
    should_retry: bool,
    members: Collection[PeerId] = (),
    awaited: Collection[PeerId] = (),
) -> RunConnections:
    """Connect to the announced peers of the run, and remember the addresses of those that are connected: those of `members`,
    and of a few others.

    All `members` are dialled, and a few others, drawn anew at each look. Addresses that `leads_out` rejects are not dialled,
    nor are the peers `awaited`, which are to dial this one.
    Without `should_retry` each peer is dialled once.
    """
    records = await discovery.find_peers(run)
    connected, own = set(await swarm_node.peers_connected()), await swarm_node.addresses()
    addresses = {record.peer: [text for text in record.addresses if leads_out(text, own)] for record in records}
    new = [address for peer in _to_dial(addresses.keys() - connected - set(awaited), members) for address in addresses[peer]]
    dialled = await swarm_node.connect(new, should_retry=should_retry) if new else {}
    connected |= {peer for peer, problem in dialled.items() if problem is None}
    reached, seated = {peer: addresses[peer] for peer in addresses if peer in connected}, set(members)
    swarm_node.remember(
        [address for peer, known in reached.items() if peer in seated for address in known],
        strangers=[address for peer, known in reached.items() if peer not in seated for address in known],
    )
    return RunConnections(
        connected=tuple(sorted(connected & {record.peer for record in records})),
        unreached={peer: problem for peer, problem in dialled.items() if problem is not None},
        records=records,
    )


def _to_dial(announced: Collection[PeerId], members: Collection[PeerId]) -> list[PeerId]:
    known, others = set(announced) & set(members), sorted(set(announced) - set(members))
    return [*sorted(known), *sorted(_RANDOM.sample(others, min(MAX_OTHERS_DIALLED, len(others))))]


async def find_manifest(
    swarm_node: SwarmNode,
    discovery: Discovery,
    run: Digest,
    *,
    seconds: float = DISCOVERY_SECONDS,
    say: Say = lambda _: None,
) -> SignedManifest:
    """Fetch the run's manifest from any of its peers, or of those that this one is connected with. A peer prints its addresses
    before it has loaded the model, and answers only afterwards, so peers are asked again for `seconds`; `say` gets a text
    meanwhile. Raises SwarmError."""
    begun = time.monotonic()
    is_told = False
    while True:
        known = await connect_to_run(swarm_node, discovery, run, should_retry=False)
        try:
            return await fetch_manifest(swarm_node.p2p, [*known.connected, *await swarm_node.peers_connected()], run)
        except ProtocolOutgrown:
            raise
        except SwarmError as error:
            patience = min(NOT_HELD_SECONDS, seconds) if isinstance(error, RunNotHeld) else seconds
            if time.monotonic() > begun + patience:
                raise
            if not is_told and time.monotonic() >= begun + NOTICE_SECONDS:
                is_told = True
                say(f"{error}\nasking again for {patience:.0f} s in all")
        await asyncio.sleep(LOOK_SECONDS)


async def check_protocol(swarm_node: SwarmNode, run: Digest) -> None:
    """Raise ProtocolOutgrown, before anything large is fetched, if all peers of the run that answer name a protocol that this
    version does not follow. If one names another, the ledger settles it later."""
    peers = (await swarm_node.peers_connected())[:PEERS_ASKED]
    answers = await ping_all(swarm_node.p2p, peers)
    named = {answer.protocol for answer in answers.values() if answer.run == run}
    if named and all(map(unfollowed, named)):
        raise ProtocolOutgrown(unfollowed(min(named)))
