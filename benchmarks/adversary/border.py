"""The findings of the review that end at the border: floods, streams, records, values of vectors, configurations, manifests."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from adloco_p2p.config.local_files import check_run_of_others
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import DataConfig, RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.messages import MESSAGE_KINDS, Ping
from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.apportionment import capped_parts
from adloco_p2p.errors import AdlocoError, RemoteProtocolError
from adloco_p2p.numerics.aggregation.gram import partial_gram, summed_gram
from adloco_p2p.numerics.aggregation.robust import Robust
from adloco_p2p.swarm.discovery.manifest import SignedManifest
from adloco_p2p.swarm.p2p.addresses import leads_out
from adloco_p2p.swarm.p2p.identity import Identity
from adloco_p2p.swarm.transport import inbox
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.gossip import GossipWire
from adloco_p2p.swarm.transport.stream_acceptor import StreamLimits, StreamPlaces
from adloco_p2p.v1 import gossip_pb2
from benchmarks.adversary.scenario import Outcome, Scenario

HOSTS, VALUES = 10, 4096
"""The size of a round whose contributions are attacked."""


def _wire(*, members: frozenset[PeerId], taken: list[PeerId]) -> GossipWire:
    async def on_message(sender: PeerId, message: object) -> None:
        del message
        taken.append(sender)
        await asyncio.Event().wait()  # the core is busy for ever

    return GossipWire(
        Endpoint(SimpleNamespace(peer_id="me"), members=lambda: members),  # it is asked what it accepts, and sends nothing
        run=RunConfig().digest,
        kinds=MESSAGE_KINDS,
        on_message=on_message,
        on_refused=lambda *_: None,
        stranger_kinds={"Ping": 1.0},
    )


def _envelope(sender: PeerId) -> gossip_pb2.Envelope:
    return gossip_pb2.Envelope(
        protocol_version=NEWEST,
        run=bytes.fromhex(RunConfig().digest),
        sender=sender,
        kind="Ping",
        payload=canonical.encode(Ping(target=PeerId("me"), is_relayed=False)),
    )


def busy_core(_: int) -> Outcome:
    """A7: messages of 200 strangers and one member arrive while the core takes none."""
    member, count = PeerId("member"), 4000
    taken: list[PeerId] = []

    async def scenario() -> tuple[int, str | None]:
        wire = _wire(members=frozenset({PeerId("me"), member}), taken=taken)
        pump = asyncio.create_task(wire.pump())
        for number in range(count):
            sender = PeerId(f"stranger{number % 200}")
            wire.accept(sender, _envelope(sender))
            if number % 100 == 0:
                await asyncio.sleep(0)
        answer = wire.accept(member, _envelope(member))
        waiting = len(wire._inbox)
        pump.cancel()
        return waiting, answer

    waiting, answer = asyncio.run(scenario())
    has_passed = waiting <= inbox.MAX_MESSAGES and len(taken) <= 1 and answer is None
    happened = f"{waiting} wait, {len(taken)} in the core; the member's message is {'taken' if answer is None else 'refused'}"
    return Outcome(sent=f"{count} messages", happened=happened, has_passed=has_passed)


def taken_streams(_: int) -> Outcome:
    """A9: 32 strangers open 64 streams each; then a member opens one."""
    limits = StreamLimits(in_all=2048, per_peer=64, strangers=64, per_stranger=4)
    places = StreamPlaces(limits, is_stranger=lambda peer: peer.startswith("stranger"))
    held, refused = [], 0
    for number in range(32 * 64):
        place = places.place_of(PeerId(f"stranger{number % 32}"))
        try:
            place.__enter__()
            held.append(place)
        except RemoteProtocolError:
            refused += 1
    try:
        with places.place_of(PeerId("member")):
            has_place = True
    except RemoteProtocolError:
        has_place = False
    for place in held:
        place.__exit__(None, None, None)
    happened = f"{len(held)} places taken, {refused} refused; the member gets {'its place' if has_place else 'none'}"
    return Outcome(sent="2,048 streams", happened=happened, has_passed=has_place and len(held) <= limits.strangers)


def scanned_addresses(_: int) -> Outcome:
    """A10 and C3: records lead to third parties' services, as a peer with a public address sees them."""
    own = ("/ip4/9.9.9.9/tcp/1/p2p/12D3KooWGRUVh6S9KRYzqwtuGRUW4MwQpzRuk7sVHrHTAdTuYy4a",)
    relay = own[0].split("/", 5)[5]
    traps = (
        "/ip4/127.0.0.1/tcp/6379",
        "/ip4/192.168.1.1/tcp/80",
        "/ip4/169.254.169.254/tcp/80",
        "/ip6/fe80::1/tcp/80",
        "/ip6/::ffff:127.0.0.1/tcp/6379",
        "/dns4/localhost/tcp/6379",
        f"/ip4/127.0.0.1/tcp/6379/{relay}/p2p-circuit",
    )
    dialled = [trap for trap in traps if leads_out(f"{trap}/{relay}", own)]
    happened = f"dialled: {', '.join(dialled)}" if dialled else "none is dialled"
    return Outcome(sent=f"{len(traps)} addresses", happened=happened, has_passed=not dialled)


# --- values ----------------------------------------------------------------------------------------------------------


def bad_values(seed: int) -> Outcome:
    """B7: one of ten hosts sends harmful values; measures how far the average moves from that of the nine others."""
    random = np.random.default_rng(seed)
    signal = random.standard_normal(VALUES)
    honest = [signal + 2.0 * random.standard_normal(VALUES) for _ in range(HOSTS - 1)]
    wanted = np.mean(honest, axis=0)
    lies = {
        "-10 times the mean": -10.0 * wanted,
        "noise of 10^3": 1e3 * random.standard_normal(VALUES),
        "noise of 10^12": 1e12 * random.standard_normal(VALUES),
        "nothing": np.zeros(VALUES),
    }
    errors = {}
    for name, lie in lies.items():
        vectors = [vector.astype(np.float32) for vector in (*honest, lie)]
        gram = summed_gram([partial_gram(vectors)], HOSTS)
        decision = Robust().decide(gram, [1] * HOSTS, [1] * HOSTS)
        got = sum(part * vector.astype(float) for part, vector in zip(decision.coefficients, vectors, strict=True))
        errors[name] = float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
    worst = max(errors, key=lambda name: errors[name])
    happened = f"the average is off by at most {errors[worst]:.2f} of its norm ({worst})"
    return Outcome(sent=", ".join(lies), happened=happened, has_passed=errors[worst] < LARGEST_ERROR)


LARGEST_ERROR = 0.3
"""The largest accepted error, relative to the norm of the honest average. The plain mean is off by 1.1 for -10 times the mean
(review, 5.1)."""


def claimed_weight(_: int) -> Outcome:
    """B7: a host claims to be a thousand times as fast as the nine others."""
    part = capped_parts([1000.0] + [1.0] * 9)[0]
    return Outcome(sent="a claimed speed", happened=f"its part of the average is {part:.0%}", has_passed=part <= 2 / 9)


# --- the volunteer's machine -----------------------------------------------------------------------------------------


def _refused(runs: Mapping[str, RunConfig]) -> Outcome:
    """Check that each of these runs is refused."""
    codes = dict.fromkeys(runs, "")
    for name, run in runs.items():
        try:
            check_run_of_others(run, PeerConfig())
        except AdlocoError as refusal:
            codes[name] = refusal.code
    happened = ", ".join(f"{name}: {code or 'TAKEN'}" for name, code in codes.items())
    return Outcome(sent=f"{len(runs)} configurations", happened=happened, has_passed=all(codes.values()))


def foreign_files(_: int) -> Outcome:
    """C1: other authors' runs read this machine's files, or a data set that its owner may still change."""
    runs = {
        "a path": RunConfig(data=DataConfig(source="text", path="/etc/passwd")),
        "a data set without a commit": RunConfig(data=DataConfig(source="hub", path="someone/data")),
        "a data set at `main`": RunConfig(data=DataConfig(source="hub", path="someone/data", revision="main")),
    }
    return _refused(runs)


def foreign_sizes(_: int) -> Outcome:
    """C2: other authors' runs would end this process by their size."""
    run = RunConfig()
    architecture: dict[str, str | int | float | bool | None] = {"model_type": "llama", "hidden_size": 10**12}
    runs = {
        "a hidden size of 10^12": replace(run, model=replace(run.model, architecture=architecture)),
        "10^6 instances": replace(run, instances=replace(run.instances, count=10**6)),
        "10^9 rows to evaluate on": replace(run, evaluation=replace(run.evaluation, rows=10**9)),
    }
    return _refused(runs)


def borrowed_name(_: int) -> Outcome:
    """C4: somebody else signs a manifest again."""
    author, other = Identity.from_seed(b"a" * 32), Identity.from_seed(b"b" * 32)
    config = RunConfig(author=author.peer_id)
    try:
        SignedManifest.sign(config, other).verified(config.digest)
    except RemoteProtocolError as refusal:
        return Outcome(sent="1 manifest", happened=str(refusal)[-100:], has_passed=True)
    return Outcome(sent="1 manifest", happened="it counts as signed by its author", has_passed=False)


BORDER: tuple[Scenario, ...] = (
    Scenario("a busy core", busy_core, "A7"),
    Scenario("streams", taken_streams, "A9"),
    Scenario("addresses of third parties", scanned_addresses, "A10"),
    Scenario("values of vectors", bad_values, "B7"),
    Scenario("claimed weight", claimed_weight, "B7"),
    Scenario("files and changing data", foreign_files, "C1"),
    Scenario("sizes", foreign_sizes, "C2"),
    Scenario("addresses of third parties, as C3", scanned_addresses, "C3"),
    Scenario("a borrowed name", borrowed_name, "C4"),
)
