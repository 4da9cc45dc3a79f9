"""Runs of simulated swarms from seeds: what `adloco-peer simulate` and the tests call. Results are plain data."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from adloco_p2p.core.gossip_agreement import GossipAgreement
from adloco_p2p.core.membership import Timing
from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.faults import Faults, random_faults
from adloco_p2p.sim.world import AgreementFactory, World

TRACE_LINES = 200
"""Last lines of the trace of a failing run that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """One plan: seconds from the last report that it could use until peers had it. Negative cannot be."""

    round: int
    first_seconds: float
    median_seconds: float
    last_seconds: float
    """Peers that were cut off or restarted hear of it later."""
    peers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One seed."""

    seed: int
    violation: str | None
    """What went wrong; none: every invariant held and the run came to its end."""
    rounds: tuple[RoundResult, ...]
    virtual_seconds: float
    events: int
    peers_seen: int
    """All that ever took part."""
    messages_per_peer_and_second: float
    bytes_per_peer_and_second: float
    messages_per_peer: float
    bytes_per_peer: float
    histories_switched: int
    trace: tuple[str, ...] = ()
    """The end of the story, for a run that failed."""


def simulate(
    *,
    peers: int,
    rounds: int,
    seeds: Iterable[int],
    loss: float = 0.0,
    churn: float = 0.0,
    partition_seconds: float = 0.0,
    liars: float = 0.0,
    round_seconds: float = 10.0,
    timing: Timing | None = None,
) -> Iterator[Result]:
    """One result per seed, as it is ready. `churn`: joiners, and as many leavers, per peer and minute. The partition cuts the
    swarm in two halves after one round. Loss and churn end when the run would end without them; then it must finish."""
    faults = Faults(
        loss=loss,
        churn=churn,
        partition_at=round_seconds if partition_seconds else None,
        partition_seconds=partition_seconds,
        liars=liars,
        calm_at=rounds * round_seconds + partition_seconds if loss or churn or partition_seconds else 0.0,
    )
    for seed in seeds:
        yield run_seed(seed, peers=peers, rounds=rounds, faults=faults, round_seconds=round_seconds, timing=timing)


def random_seed(seed: int, *, factory: AgreementFactory = GossipAgreement) -> Result:
    """A small swarm with the random faults of this seed."""
    random = Random(f"scenario {seed}")
    faults = random_faults(random)
    peers, rounds = random.randint(4, 7), random.randint(3, 5)
    return run_seed(seed, peers=peers, rounds=rounds, faults=faults, round_seconds=2.0, measures_bytes=False, factory=factory)


def run_seed(
    seed: int,
    *,
    peers: int,
    rounds: int,
    faults: Faults,
    round_seconds: float,
    timing: Timing | None = None,
    measures_bytes: bool = True,
    factory: AgreementFactory = GossipAgreement,
) -> Result:
    """Play one seed; a failing one is played again to tell its story."""

    def world(*, is_traced: bool) -> World:
        return World(
            seed,
            peers=peers,
            rounds=rounds,
            faults=faults,
            round_seconds=round_seconds,
            timing=timing,
            measures_bytes=measures_bytes,
            factory=factory,
            is_traced=is_traced,
        )

    played = world(is_traced=False)
    violation = _play(played)
    if violation is None:
        return _result(seed, played, None, ())
    traced = world(is_traced=True)
    violation = _play(traced)
    assert violation is not None and traced.trace is not None, "a seed does not repeat itself"
    return _result(seed, traced, violation, traced.trace[-TRACE_LINES:])


def _play(world: World) -> str | None:
    try:
        world.run()
    except Violation as violation:
        return str(violation)
    return None


def _result(seed: int, world: World, violation: str | None, trace: Sequence[str]) -> Result:
    machines = list(world.machines.values())
    count, seconds = len(machines), max(world.time, 1e-9)
    messages = sum(machine.messages for machine in machines) / count
    size = sum(machine.bytes for machine in machines) / count
    return Result(
        seed=seed,
        violation=violation,
        rounds=tuple(_round_result(round, times, world) for round, times in sorted(world.decided.items())),
        virtual_seconds=world.time,
        events=world.events,
        peers_seen=count,
        messages_per_peer_and_second=messages / seconds,
        bytes_per_peer_and_second=size / seconds,
        messages_per_peer=messages,
        bytes_per_peer=size,
        histories_switched=world.switches,
        trace=tuple(trace),
    )


def _round_result(round: int, times: Sequence[float], world: World) -> RoundResult:
    before = [at for at in world.reported.get(round - 2, ()) if at <= times[0]]
    start = max(before, default=0.0)
    return RoundResult(
        round=round,
        first_seconds=times[0] - start,
        median_seconds=median(times) - start,
        last_seconds=max(times) - start,
        peers=len(times),
    )


def summary(results: Sequence[Result]) -> str:
    """A few lines for a terminal, and the story of the first run that failed."""
    failed = [result for result in results if result.violation is not None]
    medians = sorted(item.median_seconds for result in results for item in result.rounds)
    lasts = sorted(item.last_seconds for result in results for item in result.rounds)
    lines = [f"{len(results) - len(failed)} of {len(results)} seeds kept every promise"]
    if medians:
        lines += [
            f"plans agreed           {len(medians)}",
            f"seconds to agreement   {_at(medians, 0.5):.2f} for half of the peers, {_at(lasts, 0.5):.2f} for all (median)",
            f"slowest plan           {medians[-1]:.2f} for half of the peers, {lasts[-1]:.2f} for all",
        ]
    if results:
        messages = sum(result.messages_per_peer_and_second for result in results) / len(results)
        size = sum(result.bytes_per_peer_and_second for result in results) / len(results)
        lines += [
            f"sent per peer          {messages:.1f} messages/s, {size / 1000:.1f} kB/s",
            f"histories switched     {sum(result.histories_switched for result in results)}",
        ]
    for result in failed[:1]:
        lines += [f"seed {result.seed} FAILED: {result.violation}", *result.trace]
    return "\n".join(lines)


def _at(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
