"""Runs of simulated swarms from seeds, for `adloco-peer simulate` and the tests. Results are plain data."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from statistics import fmean, median

from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.model.rules import AdmissionRules, BatchRules, InstanceRules, MergeRules, Rules, WorkRules
from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.faults import Faults, everyday_faults
from adloco_p2p.sim.identities import short
from adloco_p2p.sim.world import Parts, World

TRACE_LINES = 400
"""The number of last lines of a failing run's trace that are shown."""
BAR_WIDTH = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The spread of one plan: seconds from the last report that it could use until peers had it."""

    round: int
    first_seconds: float
    median_seconds: float
    last_seconds: float
    """The time until the last peer had it; peers that were cut off or restarted receive it later."""
    peers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one seed."""

    seed: int
    peers: int
    """The number of peers at the start."""
    violation: str | None
    """The violation; None if every invariant held and the run came to its end."""
    rounds: tuple[RoundResult, ...]
    virtual_seconds: float
    events: int
    messages_per_peer_and_second: float
    bytes_per_peer_and_second: float
    messages_per_peer: float
    bytes_per_peer: float
    reorgs: int
    trace: tuple[str, ...] = ()
    """The last lines of the trace of a failed run."""
    command: str = ""
    """The command line that repeats a seed of the everyday worlds."""


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
    """Yield one result per seed, as soon as it is ready. `churn` is the number of joiners, and of leavers, per peer and minute.
    The partition cuts the swarm in two halves after one round. Loss and churn end when the run would end without them; then it
    must finish."""
    faults = Faults(
        loss=loss,
        churn=churn,
        partition_at=round_seconds if partition_seconds else None,
        partition_seconds=partition_seconds,
        liars=liars,
        faults_end_at=rounds * round_seconds + partition_seconds if loss or churn or partition_seconds else 0.0,
    )
    for seed in seeds:
        yield run_seed(seed, peers=peers, rounds=rounds, faults=faults, round_seconds=round_seconds, timing=timing)


def everyday_seed(seed: int, *, parts: Parts | None = None) -> Result:
    """Play the everyday world of a seed; see `everyday_world`."""
    world = everyday_world(seed, parts=parts)
    return replace(play(seed, world), command=f"adloco-peer simulate --everyday --seeds {seed}")


def everyday_world(seed: int, *, parts: Parts | None = None) -> Callable[..., World]:
    """Return the maker of a small swarm of whole peers with the everyday faults of this seed: at least five peers and eight
    rounds."""
    random = Random(f"everyday {seed}")
    peers, rounds = random.randint(5, 6), random.randint(8, 9)
    rules = everyday_rules(random, rounds)
    is_delayed = rules.instances.count == 1
    faults = everyday_faults(random)
    return partial(World, seed, peers=peers, rounds=rounds, faults=faults, rules=rules, is_delayed=is_delayed, parts=parts)


def everyday_rules(random: Random, rounds: int) -> Rules:
    """Return the rules of a run with one instance, whose updates are delayed, or with two or three, some of which merge."""
    count = random.choice((1, 2, 2, 3))
    work = WorkRules(rounds=rounds, inner_steps=4)
    return Rules(
        work=replace(work, link_tolerance=None) if count == 1 else work,  # as `RunConfig.rules` has it with delayed updates
        instances=InstanceRules(
            count=count, fork_round=2, start="same" if count == 1 else random.choice(("fork", "fork", "same"))
        ),
        batch=BatchRules(initial_batch=8, max_batch=64),
        merge=MergeRules(period_rounds=random.choice((2, 3)), first_round=3, guard=random.random() < 0.5),
        admission=AdmissionRules(kind="open"),
    )


def run_seed(
    seed: int,
    *,
    peers: int,
    rounds: int,
    faults: Faults,
    round_seconds: float,
    timing: Timing | None = None,
    measures_bytes: bool = True,
    parts: Parts | None = None,
) -> Result:
    """Play one seed of whole peers with these faults."""

    world = partial(
        World,
        seed,
        peers=peers,
        rounds=rounds,
        faults=faults,
        round_seconds=round_seconds,
        timing=timing,
        measures_bytes=measures_bytes,
        parts=parts,
    )
    return play(seed, world)


def play(seed: int, world: Callable[..., World]) -> Result:
    """Play one seed; a failing one is played again with `is_traced`, to show its course."""
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
        return short(str(violation))
    return None


def _result(seed: int, world: World, violation: str | None, trace: Sequence[str]) -> Result:
    traffic = world.traffic
    count, seconds = len(traffic), max(world.time, 1e-9)
    messages = sum(messages for messages, _ in traffic) / count
    size = sum(num_bytes for _, num_bytes in traffic) / count
    return Result(
        seed=seed,
        peers=len(world.genesis.roster),
        violation=violation,
        rounds=tuple(_round_result(round, times, world) for round, times in sorted(world.decided.items())),
        virtual_seconds=world.time,
        events=world.events,
        messages_per_peer_and_second=messages / seconds,
        bytes_per_peer_and_second=size / seconds,
        messages_per_peer=messages,
        bytes_per_peer=size,
        reorgs=world.switches,
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
    """Return a text for a terminal: a line per swarm size, the rounds of a single size, the trace of the first failed run."""
    failed = [result for result in results if result.violation is not None]
    lines = [f"{len(results) - len(failed)} of {len(results)} runs kept every promise"]
    sizes = sorted({result.peers for result in results})
    if any(result.rounds for result in results):
        lines += ["", "seconds from the last report that a plan could use until peers had it (medians over plans)"]
        lines.append(
            f"{'peers':>6}{'plans':>8}{'half':>8}{'all':>8}{'slowest':>10}{'messages/s':>13}{'kB/s':>9}{'switches':>11}"
        )
        lines += [_size_line(peers, [result for result in results if result.peers == peers]) for peers in sizes]
        lines.append("messages and kB sent per peer and second; switches: peers that changed to another history")
    if len(sizes) == 1:
        lines += _round_lines([item for result in results for item in result.rounds])
    if failed:
        first, others = failed[0], ", ".join(str(result.seed) for result in failed[1:])
        lines += ["", f"seed {first.seed} with {first.peers} peers FAILED: {first.violation}", *first.trace]
        lines += [f"repeat it with: {first.command}"] if first.command else []
        lines += [f"seeds that failed too: {others}"] if others else []
    return "\n".join(lines)


def _size_line(peers: int, results: Sequence[Result]) -> str:
    rounds = [item for result in results for item in result.rounds]
    if not rounds:
        return f"{peers:>6}{0:>8}"
    half, last = median(item.median_seconds for item in rounds), median(item.last_seconds for item in rounds)
    slowest = max(item.last_seconds for item in rounds)
    messages = fmean(result.messages_per_peer_and_second for result in results)
    size = fmean(result.bytes_per_peer_and_second for result in results) / 1000
    switches = sum(result.reorgs for result in results)
    return f"{peers:>6}{len(rounds):>8}{half:>8.2f}{last:>8.2f}{slowest:>10.2f}{messages:>13.1f}{size:>9.1f}{switches:>11}"


def _round_lines(items: Sequence[RoundResult]) -> list[str]:
    """Return one line per round, with a bar from the first peer that had the plan to the last."""
    if not items:
        return []
    lines = ["", f"{'round':>6}{'peers':>8}{'half':>8}{'all':>8}   first peer to last (medians over seeds)"]
    rounds = sorted({item.round for item in items})
    same = {round: [item for item in items if item.round == round] for round in rounds}
    longest = max(median(item.last_seconds for item in same[round]) for round in rounds)
    for round in rounds:
        first, half, last = (
            median(getattr(item, name) for item in same[round]) for name in ("first_seconds", "median_seconds", "last_seconds")
        )
        scale = BAR_WIDTH / longest if longest > 0 else 0.0
        bar = " " * int(first * scale) + "#" * max(1, int(last * scale) - int(first * scale))
        peers = median(item.peers for item in same[round])
        lines.append(f"{round:>6}{peers:>8g}{half:>8.2f}{last:>8.2f}   {bar}")
    return lines
