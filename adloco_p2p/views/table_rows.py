"""The rows of the tables of instances and of peers, computed from a `Status`. Pure."""

from dataclasses import dataclass

from adloco_p2p.core.model.telemetry import InstanceLine, PeerCard, Plan, RosterLine
from adloco_p2p.views import own_part, run_losses, units
from adloco_p2p.views.looks import look_words
from adloco_p2p.views.records import Activity, Decision, RoundResult
from adloco_p2p.views.slow_peer import waits_for_its_link
from adloco_p2p.views.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRow:
    instance: int
    phase: str
    """A phase of the round, `planned` before it began, `following` where this peer keeps up with the state without work in the
    round, or `by others` where other peers host it."""
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
    """During averaging: the seconds so far, and those of the last time; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRow:
    peer: str
    is_self: bool
    state: str
    """alive, suspected, left, joining (known, not yet in a plan), or paused (this peer only)."""
    samples_per_second: float | None
    share: float | None
    """Its part of the samples that the current plan assigns, in [0, 1]."""
    last_report: int | None
    instances: tuple[int, ...]
    upload_bytes_per_second: float | None = None
    """The uplink in its last averages."""
    card: PeerCard | None = None
    """The peer's announcement about itself."""
    role: str = ""
    """`keeper`, or words about its leave, the rest of its probation, its reason for the bench, and looks at its work; empty for
    a full member that hosts, and whose work was not looked at."""


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


def _shares(plan: Plan | None) -> dict[str, float]:
    """Return each peer's part of the plan's samples; empty where the plan assigns none."""
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


def instance_rows(status: Status) -> list[InstanceRow]:
    """Return one row per instance of the current plan, by id; without a plan, one per instance on which this peer works."""
    plan = status.current_plan
    if plan is None:
        return [_instance_row(status, instance, None) for instance in sorted(status.activities)]
    return [_instance_row(status, planned.instance, planned) for planned in plan.instances]


def _instance_row(status: Status, instance: int, planned: InstanceLine | None) -> InstanceRow:
    share = own_part.own_share(status, planned)
    activity = _current_activity(status, instance)
    result = run_losses.latest_result(status, instance)
    is_done = (status.current_round, instance) in status.results
    num_steps = (activity.num_steps if activity else 0) or (share.inner_steps if share else status.inner_steps)
    if is_done or status.finish is not None:
        phase, step = "done", num_steps
    elif share is not None and share.inner_steps == 0:
        phase, step = "following", 0  # the state and the round's average are fetched, without work of this peer
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
        heldout_loss=run_losses.latest_heldout(status, instance),
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


def _current_activity(status: Status, instance: int) -> Activity | None:
    """Return the activity in the round in progress; progress of an earlier round does not count."""
    activity = status.activities.get(instance)
    return activity if activity is not None and activity.round >= status.current_round else None


def peer_rows(status: Status) -> list[PeerRow]:
    """Return this peer first, then the others by speed, then those that no plan names yet."""
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


def standing(status: Status) -> str:
    """Return `this peer: 2nd of 4, 25% of the work`; empty where it has no share, or no other peer has one."""
    shares = {row.peer: row.share for row in peer_rows(status) if row.share}
    own = shares.get(status.peer)
    if own is None or len(shares) < 2:
        return ""
    rank = 1 + sum(share > own for share in shares.values())
    return f"this peer: {_ordinal(rank)} of {len(shares)}, {units.percent(own)} of the work"


def _ordinal(number: int) -> str:
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{last}"


def subject(decision: Decision) -> str:
    """Return the instances that a decision is about: `1 + 2 -> 1`."""
    if decision.kind == "switch":
        return f"instance {units.instances(decision.targets)}"
    return f"{units.instances(decision.sources)} -> {units.instances(decision.targets)}"
