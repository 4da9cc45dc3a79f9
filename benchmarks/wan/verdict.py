"""Judges a swarm's promises by its event files and ledgers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.model.branches import FIRST_BRANCH_ID

Event = dict[str, Any]
BYTES_PER_VALUE = 4
"""Bytes of a float32 value on the wire."""
HEALING_SECONDS = 10 * Timing().heartbeat_seconds
"""The most seconds until all peers have one history again, by docs/consensus.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Everything that one peer wrote down."""

    name: str
    events: list[Event]

    @property
    def peer(self) -> str:
        return next((str(event["peer"]) for event in self.events if event["event"] == "started"), "")

    def named(self, *names: str) -> list[Event]:
        return [event for event in self.events if event["event"] in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A partition: unix seconds, and the names of the peers on each side."""

    begun: float
    healed: float
    sides: tuple[list[str], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One plan of one instance, by the events of the hosts that completed it."""

    round: int
    plan: str
    instance: int
    num_shares: int
    """Hosts with a share in the plan."""
    num_contributors: int
    num_digests: int
    """How many different parameters the hosts had after it."""
    slowest_seconds: dict[str, float]
    """Seconds of the slowest host by phase."""
    bytes_ratio: float | None
    """The most that a contributor sent, over 2 (n - 1) / n times the encoded size; None for a host alone."""


@dataclass(slots=True, kw_only=True)
class Verdict:
    rounds: list[Round] = field(default_factory=list)
    utilisation: dict[str, float | None] = field(default_factory=dict)
    """Training over wall time, per peer, from the end of its first round with others to the end of its last."""
    missed_averages: list[dict[str, Any]] = field(default_factory=list)
    rejoined_seconds: float | None = None
    """Seconds from the healing to a plan with everybody that all peers had."""
    one_history_seconds: float | None = None
    """Seconds from the healing until nobody followed a plan outside of the ledger any more."""
    notes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Told:
    """The facts about one plan of one instance."""

    round: int
    shares: frozenset[str]
    done: list[tuple[Life, Event]] = field(default_factory=list)


def judge(
    lives: Sequence[Life],
    ledgers: Mapping[str, list[dict[str, Any]]],
    problems: Sequence[str],
    *,
    rounds: int,
    partition: Cut | None,
) -> Verdict:
    """Return the verdict. `problems` were found before."""
    told = _by_plan(lives)
    names = {life.peer: life.name for life in lives}
    verdict = Verdict(
        utilisation={life.name: _utilisation(life) for life in lives},
        rejoined_seconds=_rejoined(lives, partition.healed) if partition else None,
        broken=list(problems),
    )
    parameters = next((e["parameters"] for life in lives for e in life.named("started")), 0)
    for (plan, instance), item in sorted(told.items(), key=lambda pair: (pair[1].round, pair[0])):
        if not item.done:
            continue
        verdict.rounds.append(_summary(item, plan, instance, parameters))
        digests = {event["digest"] for _, event in item.done}
        if len(digests) > 1:
            is_split = partition is not None and _is_split(item, partition)
            line = f"round {item.round}, instance {instance}: {len(digests)} different digests"
            (verdict.notes if is_split else verdict.broken).append(line + ", one on each side of the cut" * is_split)
        for peer in sorted(item.shares - {peer for _, event in item.done for peer in event["hosts"]}):
            reasons = _reasons(lives, item, instance, peer)
            name = names.get(peer, peer)
            verdict.missed_averages.append({"round": item.round, "instance": instance, "peer": name, "reasons": reasons})
            line = f"round {item.round}, instance {instance}: {name} has a share and is not in the average"
            (verdict.notes if reasons else verdict.broken).append(f"{line}: {'; '.join(reasons) or 'nobody says why'}")
    _judge_ledgers(verdict, ledgers, told, rounds=rounds)
    for life in lives:
        verdict.notes.extend(
            f"{life.name} jumped from round {e['from_round']} to {e['to_round']}" for e in life.named("fast_forwarded")
        )
        if not life.named("finished"):
            last = life.events[-1] if life.events else "nothing"
            verdict.broken.append(f"{life.name} did not finish the run; its last event: {last}"[:400])
    if partition:
        _judge_partition(verdict, lives, ledgers, partition)
    return verdict


def _by_plan(lives: Sequence[Life]) -> dict[tuple[str, int], _Told]:
    """Return the hosts that completed each plan, by its digest and instance. The plan of a round is the newest that the peer
    had before."""
    told: dict[tuple[str, int], _Told] = {}
    for life in lives:
        plans: dict[int, str] = {}
        for event in life.events:
            if event["event"] == "plan":
                plans[event["round"]] = event["digest"]
                for item in event["instances"]:
                    shares = frozenset(host["peer"] for host in item["hosts"] if host["batch_samples"] * host["inner_steps"])
                    told.setdefault((event["digest"], item["instance"]), _Told(event["round"], shares))
            elif event["event"] == "round":
                told[plans[event["round"]], event["instance"]].done.append((life, event))
    return told


def _summary(item: _Told, plan: str, instance: int, parameters: int) -> Round:
    contributors = max((event["hosts"] for _, event in item.done), key=len)
    slowest: dict[str, float] = {}
    for _, event in item.done:
        for phase, seconds in event["seconds"].items():
            slowest[phase] = max(slowest.get(phase, 0.0), seconds)
    count = len(contributors)
    theory = 2 * (count - 1) / count * BYTES_PER_VALUE * parameters
    return Round(
        round=item.round,
        plan=plan,
        instance=instance,
        num_shares=len(item.shares),
        num_contributors=count,
        num_digests=len({event["digest"] for _, event in item.done}),
        slowest_seconds=slowest,
        bytes_ratio=max(event["bytes_sent"] for _, event in item.done) / theory if theory else None,
    )


def _is_split(item: _Told, cut: Cut) -> bool:
    """Return whether the hosts could not talk: each side averaged by itself, and within a side all results are equal."""
    sides = {(tuple(event["hosts"]), event["digest"]) for _, event in item.done}
    members = [peer for hosts, _ in sides for peer in hosts]
    began = [event["time"] - sum(event["seconds"].values()) for _, event in item.done]
    return len(members) == len(set(members)) and max(began) < cut.healed and cut.begun < min(e["time"] for _, e in item.done)


def _reasons(lives: Sequence[Life], item: _Told, instance: int, peer: str) -> list[str]:
    """Return all events of this round, or of the peer while the round went on."""
    begun = min(event["time"] - sum(event["seconds"].values()) for _, event in item.done)
    ended = max(event["time"] for _, event in item.done)
    reasons: dict[str, None] = {}
    for life in lives:
        for event in life.named("average_failed", "average_retried"):
            if (event["round"], event["instance"]) == (item.round, instance):
                if event["event"] == "average_failed":
                    reasons[f"{life.name} attempt {event['attempt']}: {event['reason']}"] = None
                elif peer in event["without"]:
                    reasons[f"{life.name} began attempt {event['attempt']} without it"] = None
        for event in life.named("left"):
            if event["peer"] == peer and begun <= event["time"] <= ended:
                reasons[f"{life.name} saw it leave"] = None
        if life.peer == peer:
            jumps = [e for e in life.named("fast_forwarded") if e["from_round"] <= item.round <= e["to_round"]]
            reasons.update({f"it jumped from round {e['from_round']} to {e['to_round']}": None for e in jumps})
            warnings = [e for e in life.named("warning") if e.get("active") and begun <= e["time"] <= ended]
            reasons.update({f"it warned: {e['message']}": None for e in warnings})
    text = "\n".join(reasons)
    for other in lives:
        text = text.replace(other.peer, other.name) if other.peer else text
    return list(dict.fromkeys(text.split("\n"))) if text else []


def _utilisation(life: Life) -> float | None:
    done = life.named("round")
    while done and len(done[0]["hosts"]) < 2:
        del done[0]
    if len(done) < 2:
        return None
    training = sum(event["seconds"].get("training", 0.0) for event in done[1:])
    return float(training / (done[-1]["time"] - done[0]["time"]))


def _judge_ledgers(
    verdict: Verdict, ledgers: Mapping[str, list[dict[str, Any]]], told: dict[tuple[str, int], _Told], *, rounds: int
) -> None:
    chains = {name: [plan["digest"] for plan in plans] for name, plans in ledgers.items()}
    longest = max(chains, key=lambda name: len(chains[name]))
    for name, chain in chains.items():
        if chain != chains[longest]:
            pairs = zip(chain, chains[longest], strict=False)
            first = next((number for number, (a, b) in enumerate(pairs) if a != b), min(len(chain), len(chains[longest])))
            verdict.broken.append(f"the ledgers of {name} and {longest} differ from round {first} on")
    plans = ledgers[longest]
    if not plans or not plans[-1]["is_last"] or plans[-1]["round"] != rounds:
        verdict.broken.append(f"the longest ledger ends with round {plans[-1]['round'] if plans else None}, not {rounds}")
    for plan in plans:
        for item in plan["instances"] if not plan["is_last"] else ():
            known = told.pop((plan["digest"], item["instance"]), None)
            if known is None or not known.done:
                verdict.broken.append(f"round {plan['round']}, instance {item['instance']}: planned, and nobody completed it")
    lost = [event for item in told.values() for _, event in item.done]
    if lost:
        samples = sum(event["samples"] for event in lost)
        where = f"{len({(e['round'], e['digest']) for e in lost})} completed rounds with {samples} samples"
        verdict.notes.append(f"{where} are of plans that are not in the ledger")


def _rejoined(lives: Sequence[Life], healed: float) -> float | None:
    """Return the seconds until all peers had one plan in which everybody has a seat."""
    everybody = {life.peer for life in lives}
    heard: dict[str, dict[str, float]] = {}
    for life in lives:
        for event in life.named("plan"):
            if event["time"] >= healed and everybody <= {roster_entry["peer"] for roster_entry in event["roster"]}:
                heard.setdefault(event["digest"], {}).setdefault(life.name, event["time"])
    complete = [max(times.values()) for times in heard.values() if len(times) == len(lives)]
    return min(complete) - healed if complete else None


def _judge_partition(verdict: Verdict, lives: Sequence[Life], ledgers: Mapping[str, list[dict[str, Any]]], cut: Cut) -> None:
    """Judge that both sides went on, that there was one history in time, and that no training was dropped without a reason."""
    for side in cut.sides:
        theirs = [e for life in lives if life.name in side for e in life.named("round")]
        during = {e["round"] for e in theirs if cut.begun < e["time"] - sum(e["seconds"].values()) and e["time"] < cut.healed}
        line = f"{', '.join(side)} began and ended {len(during)} rounds during the cut"
        (verdict.notes if during else verdict.broken).append(line)
    agreed = {plan["digest"] for plan in max(ledgers.values(), key=len)}
    verdict.one_history_seconds = _one_history(lives, agreed, cut.healed)
    if verdict.rejoined_seconds is None:
        verdict.broken.append("after the partition there was never a plan with everybody")
    if verdict.one_history_seconds is not None and verdict.one_history_seconds > HEALING_SECONDS:
        verdict.broken.append(
            f"one history only {verdict.one_history_seconds:.1f} s after the healing, not {HEALING_SECONDS:g}"
        )
    plans = {event["digest"]: event for life in lives for event in life.named("plan")}
    lost = {(e["round"], e["instance"]) for life in lives for e in _rounds_of_others(life, agreed)}
    told = [plan for digest, plan in plans.items() if digest in agreed]
    merges = [
        merge for plan in told for merge in plan["merges"] if any(source >= FIRST_BRANCH_ID for source in merge["sources"])
    ]
    dropped = [plan["reason"] for plan in told if "dropped what" in plan["reason"]]
    verdict.notes.extend([*(f"instance {merge['target']}: {merge['reason']}" for merge in merges), *dropped])
    if lost and not merges and not dropped:
        verdict.broken.append(f"{len(lost)} rounds trained apart were neither merged nor dropped for a reason")


def _rounds_of_others(life: Life, agreed: set[str]) -> list[Event]:
    """Return the rounds that the peer completed under plans that are not in the ledger."""
    plans: dict[int, str] = {}
    found = []
    for event in life.events:
        if event["event"] == "plan":
            plans[event["round"]] = event["digest"]
        elif event["event"] == "round" and plans[event["round"]] not in agreed:
            found.append(event)
    return found


def _one_history(lives: Sequence[Life], agreed: set[str], healed: float) -> float | None:
    """Return the seconds from the healing until the last peer that followed a lost history learned of the winning one; None
    without a lost history."""
    changed = []
    for life in lives:
        plans = life.named("plan")
        strange = [number for number, plan in enumerate(plans) if plan["digest"] not in agreed]
        if strange and strange[-1] + 1 < len(plans):
            changed.append(plans[strange[-1] + 1]["time"] - healed)
    return max(changed, default=None)


def show_promises(verdict: Verdict) -> None:
    """Print the last lines of every report: what was noticed, what was broken, and the sum of it."""
    for line in verdict.notes:
        print(f"note: {line}")
    for line in verdict.broken:
        print(f"BROKEN: {line}")
    print("every promise was kept" if not verdict.broken else f"{len(verdict.broken)} promises broken")
