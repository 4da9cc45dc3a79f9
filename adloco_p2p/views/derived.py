"""The numbers and rows of the views, computed from a `Status`: progress, time left, rates, and the rows of the tables. Pure."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from adloco_p2p.core.model.course import is_paused_at
from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.telemetry import Bandwidth, InstanceLine, PeerCard, Plan, RosterLine, TaskScores
from adloco_p2p.core.model.words import plural
from adloco_p2p.core.planning.assessment import idle_hosts
from adloco_p2p.views import units
from adloco_p2p.views.records import Activity, Decision, RoundResult
from adloco_p2p.views.slow_peer import link_words, waits_for_its_link
from adloco_p2p.views.status import Status

MAX_BINS = 12
WINDOW_ROUNDS = 5
"""Rates and the time left are means over so many finished rounds, ..."""
WINDOW_SECONDS = 30.0
"""... or over the rounds of so much running time, if they are more: single rounds of a second differ widely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRow:
    instance: int
    phase: str
    """A phase of the round, `planned` before it began, `following` where this peer keeps up with the state and does no
    work in the round, or `by others` where other peers host it."""
    step: int
    num_steps: int
    loss: float | None
    heldout_loss: float | None
    requested_batch: int | None
    effective_batch: int | None
    mode: str
    reason: str
    num_hosts: int
    tokens_per_second: float | None
    averaging: tuple[float, float] | None = None
    """While it averages: seconds so far, and seconds of the last time; none where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRow:
    peer: str
    is_self: bool
    state: str
    """alive, suspected, left, joining (known, not yet in a plan), or paused (this one)."""
    samples_per_second: float | None
    share: float | None
    """Of the samples that the current plan gives out, in [0, 1]."""
    last_report: int | None
    instances: tuple[int, ...]
    upload_bytes_per_second: float | None = None
    """Of its last averages."""
    card: PeerCard | None = None
    """The peer's announcement about itself."""
    role: str = ""
    """`keeper`, or whether it leaves, the rest of its probation, why it is on the bench, what looks at its work found; empty
    for a full member that hosts, and whose work was not looked at."""


def _role(seat: RosterLine, plan: Plan | None) -> str:
    if seat.is_keeper:
        return "keeper"
    words = ["leaving"] if seat.is_leaving else []
    words += [f"on probation for {seat.probation} more reports"] if seat.probation else []
    if plan is not None and waits_for_its_link(plan, seat.peer):
        words.append("on the bench, for its link")
    elif seat.waits_from is not None:
        words.append(f"on the bench since round {seat.waits_from}")
    words.append(look_words(plan, seat.peer))
    return ", ".join(filter(None, words))


def look_scores(plan: Plan | None) -> dict[str, list[float]]:
    """Of each host whose contributions were looked at, the last scores in its instances."""
    found: dict[str, list[float]] = {}
    for host in (host for item in (plan.instances if plan is not None else ()) for host in item.hosts):
        if host.scores:
            found.setdefault(host.peer, []).extend(score / 10 for score in host.scores)
    return found


def look_words(plan: Plan | None, peer: str) -> str:
    """What the last looks at the peer's work found; empty where there were none."""
    scores = look_scores(plan).get(peer)
    if plan is None or not scores:
        return ""
    working = ({host.peer: host.scores for host in item.hosts if host.samples} for item in plan.instances)
    is_idle = any(peer in idle_hosts(known) for known in working)
    found = "it does not show, so it is given a quarter of the rows" if is_idle else "it shows"
    return f"its work was looked at {plural(len(scores), 'time')} lately: {found} (mean score {fmean(scores):.1f})"


def keeper_words(status: Status) -> str:
    """The part of a keeper in the run; empty for any other peer."""
    plan = status.current_plan
    if plan is None or status.state != "running":
        return ""
    if not any(seat.is_keeper for seat in plan.roster if seat.peer == status.peer):
        return ""
    others = [seat.peer for seat in plan.roster if not seat.is_keeper and status.peer_states.get(seat.peer) not in _ABSENT]
    return "keeps the states, trains nothing" if others else "keeps the states; nobody trains until a peer joins"


_ABSENT = frozenset({"left", "suspected"})


def waiting_kind(status: Status) -> str:
    """What `joining` describes, in a word."""
    return "keeper" if keeper_words(status) else "bench" if bench_words(status) else "joining"


def ended_by_signer(status: Status) -> str:
    """In words, that a signer's order ended the run, after which round and why; otherwise empty."""
    last = status.plans[-1] if status.plans else None
    if status.finish is None or last is None or last.course.last_round is None or last.round <= last.course.last_round:
        return ""
    if _is_at_its_own_end(status, last):
        return ""
    reason = status.reasons.get("stop", "")
    return f"a signer ended the run after round {last.course.last_round}{f': {units.one_line(reason)}' if reason else ''}"


def _is_at_its_own_end(status: Status, last: Plan) -> bool:
    """Whether the last plan would have been the last one without any order to end sooner."""
    if status.samples is not None:  # the last round is cut to whole steps
        return status.samples - last.samples_before < max(1, sum(planned.effective_batch for planned in last.instances))
    return status.rounds_unstopped is not None and last.round >= status.rounds_unstopped


def paused_by_signer(status: Status) -> str:
    """In words, that a signer paused the run and its last round before that is over here; otherwise empty."""
    newest = status.plans[-1] if status.plans else None
    if newest is None or status.finish is not None or not is_paused_at(newest.course, newest.round + 1):
        return ""
    mine = [planned.instance for planned in newest.instances if _share(status, planned) is not None]
    if not all((newest.round, instance) in status.results for instance in mine):
        return ""
    is_seated = any(seat.peer == status.peer for seat in newest.roster)
    return "paused by a signer" if is_seated else "paused by a signer; nobody is let in until the run goes on"


def bench_words(status: Status) -> str:
    """Why this peer is on the bench, and since when where it waits for its turn; empty where it is not there."""
    plan = status.current_plan
    if plan is None or not status.peer or status.state != "running":
        return ""
    if waits_for_its_link(plan, status.peer):
        return f"on the bench: {link_words(plan, status.peer)}"
    since = next((seat.waits_from for seat in plan.roster if seat.peer == status.peer), None)
    if since is None:
        return ""
    if since > plan.round:
        return f"on the bench, without work until round {since}"
    requested = sum(item.requested_batch for item in plan.instances)
    num_hosts = len({share.peer for item in plan.instances for share in item.hosts if share.batch_samples})
    hosts = plural(num_hosts, "host")
    why = f"{plural(requested, 'sample')} per step feed {hosts}" if requested <= num_hosts else f"the run allows {hosts}"
    ahead = sum(seat.waits_from is not None and seat.waits_from < since for seat in plan.roster)
    return f"on the bench since round {since}: {why}, {plural(ahead, 'peer')} waited longer"


def task_words(claim: TaskScores) -> list[str]:
    """`hellaswag acc 0.3125, 200 documents`, for each task; standard errors are left out."""
    words = []
    for score in claim.scores:
        figures = [
            f"{units.one_line(metric.name)} {metric.value:.4f}" for metric in score.metrics if "_stderr" not in metric.name
        ]
        words.append(f"{units.one_line(score.name)} {', '.join([*figures, f'{score.num_documents} documents'])}")
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Over all rounds that count, on this peer. Bytes: of all traffic where it was counted, else of averaging alone."""

    samples: int
    tokens: int
    bytes_sent: int
    bytes_received: int
    training_seconds: float


def totals(status: Status) -> Totals:
    results = status.results.values()
    traffic = traffic_by_kind(status).values()
    return Totals(
        samples=sum(result.samples for result in results),
        tokens=sum(result.tokens for result in results),
        bytes_sent=sum(sent for sent, _ in traffic),
        bytes_received=sum(received for _, received in traffic),
        training_seconds=sum(result.seconds.get("training", 0.0) for result in results),
    )


def traffic_by_kind(status: Status) -> dict[str, tuple[int, int]]:
    """Bytes sent and received by kind. Where nothing was counted, those of the committed averages of this peer."""
    results = status.results.values()
    averaging = sum(result.bytes_sent for result in results), sum(result.bytes_received for result in results)
    return dict(status.traffic) or {"averaging": averaging}


def bytes_per_token(status: Status) -> float | None:
    """Bytes that this peer sent, by the tokens that it trained."""
    sums = totals(status)
    return sums.bytes_sent / sums.tokens if sums.tokens else None


def bandwidth(status: Status) -> Bandwidth:
    """Bytes of this peer, rates and caps: what is measured now, or else what earlier rounds took. No rates after its end."""
    rounds = totals(status)
    found = status.bandwidth or Bandwidth(sent_bytes=rounds.bytes_sent, received_bytes=rounds.bytes_received)
    if status.state not in ("stopped", "finished"):
        return found
    return replace(found, up_bytes_per_second=None, down_bytes_per_second=None)


def phase(status: Status) -> str:
    """The phase of this peer now, in a word: of its instances, that of the first that is not done."""
    if status.state == "starting":
        return status.starting or status.state
    if status.state in ("paused", "stopped", "finished"):
        return status.state
    if words := paused_by_signer(status):
        return words
    if words := joining(status):
        return ", ".join(part for part in (words, download_words(status)) if part)
    phases = [row.phase for row in instance_rows(status) if row.phase != "by others"]
    return next((phase for phase in phases if phase not in ("done", "planned")), phases[0] if phases else "waiting")


def joining(status: Status) -> str:
    """In words, why this peer has no work in the run yet; empty where it has work, or none is planned for it."""
    plan = status.current_plan
    if plan is None or plan.is_last or not status.peer or status.state != "running":
        return ""
    ahead = [known for known in status.plans if known.round >= plan.round]
    if all(roster_entry.peer != status.peer for roster_entry in plan.roster):
        admitted = [known.round for known in ahead if any(roster_entry.peer == status.peer for roster_entry in known.roster)]
        if admitted:
            return f"waiting to join: round {admitted[0]}"
        others = {*(roster_entry.peer for roster_entry in ahead[-1].roster), *status.peer_states} - {status.peer}
        if all(status.peer_states.get(peer) == "left" for peer in others):
            return "waiting to join; no other peer takes part: the run is paused or over, or this machine is cut off"
        return f"waiting to join; plans read up to round {ahead[-1].round}"
    if words := keeper_words(status) or bench_words(status):
        return words
    working = [known.round for known in ahead if _has_work(status, known)]
    until = f"; training from round {working[0]} on" if working else ""
    if working[:1] != [plan.round] and any(seat.is_leaving for seat in plan.roster if seat.peer == status.peer):
        return f"back after a leave: no work in this round{until}"
    shares = {item.instance: share for item in plan.instances if (share := _share(status, item)) is not None}
    if not shares or status.results or any(share.inner_steps for share in shares.values()):
        return ""
    what = "the state is here" if status.fetched >= shares.keys() else "fetching the state"
    return what + until


def download_words(status: Status) -> str:
    """`57.0 MB of 90.0 MB, 3.10 MB/s, 10.6 s left`; empty where no state is on its way."""
    downloads = status.downloads.values()
    received, total = (sum(getattr(each, name) for each in downloads) for name in ("received_bytes", "total_bytes"))
    if not total:
        return ""
    rate = sum(each.bytes_per_second or 0.0 for each in downloads)
    left = f", {units.size(rate)}/s, {units.duration((total - received) / rate)} left" if rate > 0 else ""
    return f"{units.size(received)} of {units.size(total)}{left}"


def download_fraction(status: Status) -> float | None:
    """Part of the states on their way that is here; none where none is on its way."""
    total = sum(each.total_bytes for each in status.downloads.values())
    return sum(each.received_bytes for each in status.downloads.values()) / total if total else None


def _has_work(status: Status, plan: Plan) -> bool:
    return any((share := _share(status, planned)) is not None and share.inner_steps > 0 for planned in plan.instances)


def compute_utilisation(status: Status) -> float | None:
    """Training seconds of the rounds that count over running time, of all devices: work that was lost and done again counts
    once."""
    elapsed = status.elapsed_seconds * _num_devices(status)
    return sum(map(_device_seconds, status.results.values())) / elapsed if elapsed > 0 and status.results else None


def _num_devices(status: Status) -> int:
    return status.device.count(", ") + 1


def _device_seconds(result: RoundResult) -> float:
    """Of training, of all devices that shared the instance."""
    return result.seconds.get("training", 0.0) * max(1, len(result.devices))


def round_durations(status: Status) -> list[tuple[int, float]]:
    """(round, seconds of running time), by round: a round lasts from the end of the one before it to its own.

    Rounds whose predecessor this peer did not end are left out: their span holds the start, or the wait for a seat.
    """
    spans = pairwise(round_ends(status))
    return [(round_, end - begin) for (before, begin), (round_, end) in spans if round_ == before + 1 and end > begin]


def mean_duration(status: Status) -> float | None:
    durations = [duration for _, duration in round_durations(status)]
    return fmean(durations) if durations else None


def duration_histogram(status: Status) -> list[tuple[float, float, int]]:
    """(from, to, number of rounds) in seconds: at most MAX_BINS intervals of one width; empty before the first round ends."""
    seconds = [duration for _, duration in round_durations(status)]
    if not seconds:
        return []
    first, last = min(seconds), max(seconds)
    num_bins = min(MAX_BINS, len(seconds)) if last > first else 1
    width = (last - first) / num_bins or last
    counts = Counter(min(num_bins - 1, int((value - first) / width)) for value in seconds)
    return [(first + index * width, first + (index + 1) * width, counts[index]) for index in range(num_bins)]


def utilisation_by_round(status: Status) -> list[tuple[int, float]]:
    """(round, part of its time in which this peer's devices computed, in [0, 1]), by round."""
    num_devices = _num_devices(status)
    trained: dict[int, float] = {}
    for result in status.results.values():
        trained[result.round] = trained.get(result.round, 0.0) + _device_seconds(result)
    return [(round_, min(1.0, trained[round_] / (num_devices * duration))) for round_, duration in round_durations(status)]


def latest_result(status: Status, instance: int) -> RoundResult | None:
    results = [result for result in status.results.values() if result.instance == instance]
    return max(results, key=lambda result: result.round, default=None)


def final_heldout(status: Status) -> float | None:
    """As the run reports it; before its end, the best newest one of the instances that are still alive."""
    if status.finish is not None and status.finish.heldout_loss is not None:
        return units.finite(status.finish.heldout_loss)
    newest = max(life.end for life in status.lives.values())
    alive = [instance for instance, life in status.lives.items() if life.end == newest]
    losses = [units.finite(latest_heldout(status, instance)) for instance in alive]
    return min((loss for loss in losses if loss is not None), default=None)


def fate(status: Status, instance: int) -> str:
    """The fate of an instance, in words."""
    for decision in status.decisions:
        if decision.kind == "merge" and instance in decision.sources and instance not in decision.targets:
            return f"merged into {decision.targets[0]} before round {decision.round}"
    return "lived to the end" if status.finish is not None else "alive"


def latest_heldout(status: Status, instance: int) -> float | None:
    """The newest held-out loss; not every round has one."""
    newest = _latest_evaluated(status, instance)
    return newest.heldout_loss if newest else None


def heldout_by_data(status: Status, instance: int | None = None) -> dict[str, float | None]:
    """The newest held-out loss of an instance, or that of the model at the end of the run, on each data set by itself, where
    instances have data of their own."""
    newest = status.finish if instance is None else _latest_evaluated(status, instance)
    return dict(zip(status.data_sets, newest.heldout_losses, strict=False)) if newest else {}


def _latest_evaluated(status: Status, instance: int) -> RoundResult | None:
    measured = [result for result in status.results.values() if result.instance == instance and result.heldout_loss is not None]
    return max(measured, key=lambda result: result.round, default=None)


def round_ends(status: Status) -> list[tuple[int, float]]:
    """(round, running time at the end of its last instance) of the rounds that are over on this peer, by round."""
    is_over = all(row.phase in {"done", "by others"} for row in instance_rows(status))
    ends: dict[int, float] = {}
    for result in status.results.values():
        if result.round < status.current_round or is_over:
            ends[result.round] = max(ends.get(result.round, 0.0), result.elapsed_seconds)
    return sorted(ends.items())


def _last_rounds(status: Status) -> list[tuple[int, float]]:
    """The ends of the last rounds, behind the beginning of the first of them. Before the first round of a peer that came later
    it waited for a seat, so that round has no beginning."""
    ends = round_ends(status)
    points = [*([(-1, 0.0)] if ends and ends[0][0] == 0 else []), *ends]
    num_recent = sum(points[-1][1] - end <= WINDOW_SECONDS for _, end in points)
    return points[-max(WINDOW_ROUNDS + 1, num_recent) :]


def seconds_per_round(status: Status) -> float | None:
    """Mean over the last rounds; before the first one ends, what the plan expects."""
    points = _last_rounds(status)
    if len(points) < 2:
        plan = status.current_plan
        return plan.expected_seconds if plan is not None and plan.expected_seconds > 0 else None
    first, last = points[0], points[-1]
    return max(0.0, last[1] - first[1]) / (last[0] - first[0])


def tokens_per_second(status: Status) -> float | None:
    """Tokens of this peer over the last rounds by their running time; before that, the rate of the inner steps."""
    points = _last_rounds(status)
    if len(points) < 2:
        rates = [activity.tokens_per_second for activity in status.activities.values() if activity.tokens_per_second]
        return rates[-1] if rates else None
    window = [round_ for round_, _ in points[1:]]
    seconds = points[-1][1] - points[0][1]
    tokens = sum(result.tokens for result in status.results.values() if result.round in window)
    return tokens / seconds if seconds > 0 else None


def round_fraction(status: Status) -> float:
    """Part of the current round's inner steps that this peer has done, in [0, 1]."""
    rows = [row for row in instance_rows(status) if row.phase != "by others"]
    if not rows:
        return 0.0
    return sum(min(1.0, row.step / row.num_steps) for row in rows if row.num_steps) / len(rows)


def run_fraction(status: Status) -> float:
    """Part of the run that is done, in [0, 1]."""
    if status.finish is not None:
        return 1.0
    if status.samples is not None:
        plan = status.current_plan
        return (plan.samples_before + plan.samples * round_fraction(status)) / status.samples if plan is not None else 0.0
    return min(1.0, (status.current_round + round_fraction(status)) / status.rounds) if status.rounds else 0.0


def round_shown(status: Status) -> int:
    """The round in progress; of a run that is over the number of its rounds."""
    if status.samples is not None:
        return status.plans[-1].round if status.finish is not None and status.plans else status.current_round
    rounds = status.rounds or 0
    return rounds if status.finish is not None else min(status.current_round, rounds)


def samples_given(status: Status) -> int:
    """Samples of the rounds that are over, by their plans."""
    return max((plan.samples_before for plan in status.plans if plan.round <= round_shown(status)), default=0)


def position(status: Status) -> str:
    """`round 12/40`; of a run that counts samples `round 12, 5,120/8,192 samples`."""
    if status.samples is None:
        return f"round {round_shown(status)}/{status.rounds}"
    return f"round {round_shown(status)}, {samples_given(status):,}/{status.samples:,} samples"


def rounds_left(status: Status) -> float:
    """Rounds to come, with what is left of the one in progress; by samples, if all are like the one in progress."""
    left = 1.0 - run_fraction(status)
    if status.samples is None:
        return (status.rounds or 0) * left
    plan = status.current_plan
    return left * status.samples / plan.samples if plan is not None and plan.samples else 0.0


def eta_seconds(status: Status) -> float | None:
    """Running time until the end of the run; none where no round has ended and the plan expects nothing, or nothing runs."""
    if status.state in ("paused", "stopped") or paused_by_signer(status) or keeper_words(status).endswith("joins"):
        return None
    pace = seconds_per_round(status)
    return None if pace is None else pace * rounds_left(status)


def device_words(status: Status) -> str:
    """This peer's devices, and where there are several the instances of its last round on each."""
    trained = [result for result in status.results.values() if result.devices]
    newest = max((result.round for result in trained), default=0)
    places = [
        f"instance {result.instance} on {' and '.join(result.devices)}"
        for result in sorted(trained, key=lambda result: result.instance)
        if result.round == newest
    ]
    return f"{status.device} ({'; '.join(places)})" if places and ", " in status.device else status.device


def instance_rows(status: Status) -> list[InstanceRow]:
    """One row per instance of the current plan, by id; without a plan, per instance that this peer works on."""
    plan = status.current_plan
    if plan is None:
        return [_instance_row(status, instance, None) for instance in sorted(status.activities)]
    return [_instance_row(status, planned.instance, planned) for planned in plan.instances]


def _instance_row(status: Status, instance: int, planned: InstanceLine | None) -> InstanceRow:
    share = _share(status, planned)
    activity = _current_activity(status, instance)
    result = latest_result(status, instance)
    is_done = (status.current_round, instance) in status.results
    num_steps = (activity.num_steps if activity else 0) or (share.inner_steps if share else status.inner_steps)
    if is_done or status.finish is not None:
        phase, step = "done", num_steps
    elif share is not None and share.inner_steps == 0:
        phase, step = "following", 0  # the state and the round's average are fetched, of which this peer did no part
    elif activity is not None:
        # Whatever follows training in a round begins when all inner steps are done.
        phase, step = activity.phase, num_steps if activity.phase in _AFTER_TRAINING else activity.step
    else:
        phase, step = ("planned" if share is not None else "by others"), 0
    running_loss = activity.loss if activity is not None else None
    return InstanceRow(
        instance=instance,
        phase=phase,
        step=step,
        num_steps=num_steps,
        loss=running_loss if running_loss is not None and not is_done else result.loss if result else None,
        heldout_loss=latest_heldout(status, instance),
        requested_batch=planned.requested_batch if planned else None,
        effective_batch=planned.effective_batch if planned else None,
        mode=planned.mode if planned else "",
        reason=planned.reason if planned else "",
        num_hosts=len(planned.hosts) if planned else 0,
        tokens_per_second=activity.tokens_per_second if activity else None,
        averaging=_averaging(status, activity, result) if phase == "averaging" else None,
    )


def _averaging(status: Status, activity: Activity | None, last: RoundResult | None) -> tuple[float, float] | None:
    usual = last.seconds.get("averaging", 0.0) if last is not None else 0.0
    if activity is None or activity.since is None or status.last_time is None or usual <= 0.0:
        return None
    return status.last_time - activity.since, usual


_AFTER_TRAINING = frozenset(
    {"trained", "averaging", "retrying", "committing", "repairing", "applying", "measuring", "evaluating", "probing", "done"}
)


def _share(status: Status, planned: InstanceLine | None) -> HostShare | None:
    """The share of this peer in the instance, by the plan."""
    hosts = planned.hosts if planned is not None else ()
    return next((host for host in hosts if host.peer == status.peer), None)


def _current_activity(status: Status, instance: int) -> Activity | None:
    """Only of the round in progress: progress of an earlier round does not count."""
    activity = status.activities.get(instance)
    return activity if activity is not None and activity.round >= status.current_round else None


def peer_rows(status: Status) -> list[PeerRow]:
    """This peer first, then the fastest; then those that no plan names yet."""
    plan = status.current_plan
    roster_entries = {roster_entry.peer: roster_entry for roster_entry in plan.roster} if plan is not None else {}
    ordered = sorted(
        roster_entries.values(),
        key=lambda roster_entry: (roster_entry.peer != status.peer, -roster_entry.samples_per_second, roster_entry.peer),
    )
    is_paused = status.state == "paused"
    strangers = sorted({*status.peer_states, *([status.peer] if is_paused else [])} - set(roster_entries))
    shares = _shares(plan)

    def membership(peer: str) -> str:
        return status.peer_states.get(peer, "joined")

    return [
        *(
            PeerRow(
                peer=roster_entry.peer,
                is_self=roster_entry.peer == status.peer,
                state="paused"
                if is_paused and roster_entry.peer == status.peer
                else _state(membership(roster_entry.peer), in_plan=True),
                samples_per_second=roster_entry.samples_per_second or None,
                share=shares.get(roster_entry.peer, 0.0) if shares else None,
                last_report=roster_entry.last_report,
                instances=_hosted(plan, roster_entry.peer),
                role=_role(roster_entry, plan),
                upload_bytes_per_second=roster_entry.upload_bytes_per_second or None,
                card=status.peer_cards.get(roster_entry.peer),
            )
            for roster_entry in ordered
        ),
        *(
            PeerRow(
                peer=peer,
                is_self=peer == status.peer,
                state="paused" if is_paused and peer == status.peer else _state(membership(peer), in_plan=False),
                samples_per_second=None,
                share=None,
                last_report=None,
                instances=(),
                card=status.peer_cards.get(peer),
            )
            for peer in strangers
        ),
    ]


def _shares(plan: Plan | None) -> dict[str, float]:
    """Peer -> part of the plan's samples; empty where the plan gives out none."""
    samples: dict[str, int] = {}
    for planned in plan.instances if plan is not None else ():
        for host in planned.hosts:
            samples[host.peer] = samples.get(host.peer, 0) + host.batch_samples * host.inner_steps
    total = sum(samples.values())
    return {peer: count / total for peer, count in samples.items()} if total else {}


def _state(membership: str, *, in_plan: bool) -> str:
    if membership in {"suspected", "left"}:
        return membership
    return "alive" if in_plan else "joining"


def _hosted(plan: Plan | None, peer: str) -> tuple[int, ...]:
    planned = plan.instances if plan is not None else ()
    return tuple(instance.instance for instance in planned if any(host.peer == peer for host in instance.hosts))


def subject(decision: Decision) -> str:
    """The instances that a decision is about: `1 + 2 -> 1`."""
    if decision.kind == "switch":
        return f"instance {units.instances(decision.targets)}"
    return f"{units.instances(decision.sources)} -> {units.instances(decision.targets)}"
