"""The web page of a run, as one JSON document. Pure; every list in it has a limit.

`status` and `plans` come from the ledger (`ledger_events.py`) or, for a run without one, from the events of a peer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from adloco_p2p.core.ledger.contributions import Contribution, CreditedSamples
from adloco_p2p.core.model.telemetry import PeerCard, Plan, Stamped
from adloco_p2p.views import own_part, progress, run_losses, table_rows, traffic, units
from adloco_p2p.views.comparison import ComparedRun, summarise_runs
from adloco_p2p.views.cost_model import round_bytes
from adloco_p2p.views.ledger_events import LedgerLine
from adloco_p2p.views.metrics import measures
from adloco_p2p.views.records import Decision, Incident, RoundResult
from adloco_p2p.views.status import Status
from adloco_p2p.views.throughput import throughput

MAX_POINTS = 500
"""The most points of one curve; a longer one shows every n-th round, and always the last one."""
MAX_LINES = 200
"""The most plans of the ledger, the newest ones."""
MAX_PEERS = 300
MAX_DECISIONS = 100
"""The most merges, forks, probes and switches that are listed, the newest ones; all forks and merges are in the family tree."""
MAX_TEXT = 400

Document = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """A run, and what the maker of the page knows about it."""

    status: Status
    plans: Sequence[LedgerLine]
    """The plans, oldest first."""
    contributions: Sequence[Contribution]
    credited: Sequence[CreditedSamples] = ()
    """The reports of a checked ledger."""
    is_signed: bool
    """Whether plans and contributions are from such a ledger."""
    sequence_length: int
    parameters: int | None
    bytes_per_value: float
    source: str
    """The origin of the data, for the reader."""
    is_alive: Callable[[str], bool] | None = None
    """Whether a peer showed a sign of life lately; None without a connection to the swarm."""
    own: Status | None = None
    """The status of this machine's node."""
    export: str = ""
    """The command that writes the model that this machine has."""
    cards: Mapping[str, PeerCard] = field(default_factory=dict)
    """What peers announce about themselves, where `own` is not the source."""


def document(run: ShownRun) -> Document:
    status, own = run.status, run.own
    peers = _peers(run)
    bans = own_part.ban_words(status)
    return {
        "run": {
            "digest": status.run,
            "name": text(status.name),
            "mode": status.mode,
            "admission": (own or status).admission,
            "rounds": status.rounds,
            "samples": status.samples,
            "inner_steps": status.inner_steps,
            "sequence_length": run.sequence_length,
            "parameters": run.parameters,
            "is_signed": run.is_signed,
            "protocol": own_part.protocol_words(status),
        },
        "source": run.source,
        "now": _now(status, run.contributions, own),
        "instances": _instances(status, own),
        "decisions": [_decision(decision) for decision in _shown_decisions(status)],
        "peers": peers[:MAX_PEERS],
        "num_peers": len(peers),
        "bans": [{"peer": text(peer), "words": text(words)} for peer, words in bans.items()][:MAX_PEERS],
        "tasks": [
            {"peer": text(claim.peer), "round": claim.round, "words": [text(words) for words in run_losses.task_words(claim)]}
            for claim in [*status.task_scores.values()][::-1]
        ],
        "num_alive": sum(peer["state"] == "alive" for peer in peers),
        "throughput": _throughput(run),
        "traffic": _traffic(status, own, parameters=run.parameters, bytes_per_value=run.bytes_per_value),
        "ledger": [_line(line) for line in run.plans[: -MAX_LINES - 1 : -1]],
        "num_plans": len(run.plans),
        "own": _own(own, run.export) if own is not None else None,
    }


def side_by_side(runs: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Return the page's rows of several runs: the summary of each by `summarise_runs`, and its held-out losses by `round`,
    `samples` and `seconds` of its peer (None for a round that the peer did not see)."""
    rows: list[dict[str, Any]] = summarise_runs(runs)["runs"]
    for row, run in zip(rows, runs, strict=True):
        ends = dict(progress.round_ends(run.own))
        pairs = [*zip(run.curve(by_samples=False), run.curve(by_samples=True), strict=True)]
        row |= {
            "label": text(run.label),
            "name": text(run.own.name),
            "tokens": sum(result.tokens for result in run.of_all.results.values()),
            "seconds": rounded(run.own.elapsed_seconds),
            "heldout_loss": rounded(row["heldout_loss"]),
            "points": [
                {
                    "round": round(end) - 1,
                    "samples": round(samples),
                    "seconds": rounded(ends.get(round(end) - 1)),
                    "heldout": rounded(loss),
                }
                for (end, loss), (samples, _) in run_losses.thinned(pairs, MAX_POINTS)
            ],
        }
    return rows


def plans_of(events: Sequence[Stamped]) -> list[LedgerLine]:
    """Return the latest plan of every round, by round."""
    plans = {stamped.event.round: stamped.event for stamped in events if isinstance(stamped.event, Plan)}
    return [LedgerLine(plan=plan) for _, plan in sorted(plans.items())]


def _now(status: Status, contributions: Sequence[Contribution], own: Status | None) -> Document:
    ended = own if own is not None and own.finish is not None else None
    is_finished = status.finish is not None or ended is not None
    current = status.rounds if is_finished and status.rounds is not None else progress.round_shown(status)
    given = progress.samples_given(status)
    fraction = given / status.samples if status.samples else current / status.rounds if status.rounds else 0.0
    return {
        "round": current,
        "samples_given": given,
        "is_finished": is_finished,
        "seconds_left": rounded(progress.eta_seconds(own)) if own is not None else None,
        "seconds": rounded(own.elapsed_seconds) if own is not None else None,
        "tokens_per_second": rounded(progress.swarm_tokens_per_second(own)) if own is not None else None,
        "join": f"adloco-peer join --initial-peers '{own.join_link}' --workdir my-peer" if own and own.join_link else "",
        "is_paused": bool(own_part.paused_by_signer(own if own is not None else status)),
        "orders": text(status.orders),
        "is_last_agreed": any(plan.is_last for plan in status.plans),
        "fraction": min(1.0, fraction),
        "heldout_loss": rounded(run_losses.final_heldout(ended or status)) if status.lives else None,
        "samples": sum(row.samples for row in contributions),
        "tokens": sum(row.tokens for row in contributions),
        "unigram_entropy": rounded(own.unigram_entropy) if own is not None else None,
    }


def _instances(status: Status, own: Status | None) -> list[Document]:
    trained = _samples_by_round(status)
    rows = {row.instance: row for row in table_rows.instance_rows(status)}
    ends = dict(progress.round_ends(own)) if own is not None else {}
    found: list[Document] = []
    for instance, life in sorted(status.lives.items()):
        row = rows.get(instance)
        points = sorted((r for r in status.results.values() if r.instance == instance), key=lambda result: result.round)
        found.append(
            {
                "id": instance,
                "start": life.start,
                "end": life.end,
                "fate": run_losses.fate(status, instance),
                "is_alive": row is not None,
                "requested": row.requested_batch if row else None,
                "effective": row.effective_batch if row else None,
                "mode": row.mode if row else "",
                "reason": text(row.reason) if row else "",
                "hosts": row.num_hosts if row else 0,
                "loss": rounded(points[-1].loss) if points else None,
                "heldout": rounded(run_losses.latest_heldout(status, instance)),
                "samples": sum(point.samples for point in points),
                "points": [_point(point, trained, ends) for point in run_losses.thinned(points, MAX_POINTS)],
            }
        )
    return found


def _point(point: RoundResult, trained: Mapping[int, int], ends: Mapping[int, float]) -> Document:
    """Return one point. `ends`: running time of this machine's node at the ends of the rounds that it has seen."""
    return {
        "round": point.round,
        "samples": trained[point.round],
        "seconds": rounded(ends.get(point.round)),
        "loss": rounded(point.loss),
        "heldout": rounded(point.heldout_loss),
        "requested": point.requested_batch,
        "effective": point.effective_batch,
        "mode": point.mode,
    }


def _samples_by_round(status: Status) -> dict[int, int]:
    """Return the samples of all instances up to the end of each round."""
    per_round: dict[int, int] = {}
    for result in status.results.values():
        per_round[result.round] = per_round.get(result.round, 0) + result.samples
    total, trained = 0, {}
    for round_, samples in sorted(per_round.items()):
        total += samples
        trained[round_] = total
    return trained


def _shown_decisions(status: Status) -> Sequence[Decision]:
    """Return all decisions of the family tree, and the newest of the others; newest first."""
    family = [decision for decision in status.decisions if decision.kind in ("fork", "merge")]
    others = [decision for decision in status.decisions if decision.kind not in ("fork", "merge")][-MAX_DECISIONS:]
    return sorted([*family, *others], key=lambda decision: -decision.round)


def _decision(decision: Decision) -> Document:
    return asdict(decision) | {
        "subject": table_rows.subject(decision),
        "weights": [rounded(weight) for weight in decision.weights],
        "reason": text(decision.reason),
    }


def _throughput(run: ShownRun) -> list[Document]:
    """Return the throughput of the swarm, as this machine's node saw it."""
    if run.own is None:
        return []
    return [
        {"round": each.round, "tokens_per_second": rounded(each.tokens_per_second), "computing": rounded(each.computing)}
        for each in run_losses.thinned(throughput(run.own, run.credited, sequence_length=run.sequence_length), MAX_POINTS)
    ]


def _states(status: Status, own: Status | None, is_alive: Callable[[str], bool] | None) -> dict[str, str]:
    """Return the states of the roster, by recent signs of life or else by this machine's node; unknown after the node's end."""
    seated = [row.peer for row in table_rows.peer_rows(status)]
    if is_alive is not None:
        return {peer: "alive" if is_alive(peer) else "silent" for peer in seated}
    if own is None or own.state in ("stopped", "finished"):
        return dict.fromkeys(seated, "seated")
    return {row.peer: row.state for row in table_rows.peer_rows(own)}


def _peers(run: ShownRun) -> list[Document]:
    """Return the contributors, the largest first, then the others of the roster."""
    status, contributions = run.status, run.contributions
    states = _states(status, run.own, run.is_alive)
    cards = run.cards or (run.own.peer_cards if run.own is not None else {})
    total = sum(row.samples for row in contributions)
    seated = {row.peer: row for row in table_rows.peer_rows(status)}
    given: dict[str, Contribution] = {row.peer: row for row in contributions}
    found: list[Document] = []
    for peer in [*given, *(peer for peer in seated if peer not in given)]:
        roster_entry, gift = seated.get(peer), given.get(peer)
        found.append(
            {
                "peer": text(peer),
                "role": roster_entry.role if roster_entry is not None else "",
                "state": "banned" if peer in status.bans else "left" if roster_entry is None else states.get(peer, "seated"),
                "samples_per_second": rounded(roster_entry.samples_per_second) if roster_entry else None,
                "upload_bytes_per_second": rounded(roster_entry.upload_bytes_per_second) if roster_entry else None,
                **_card(cards.get(peer)),
                "instances": list(roster_entry.instances) if roster_entry else [],
                "samples": gift.samples if gift else 0,
                "tokens": gift.tokens if gift else 0,
                "share": rounded(gift.samples / total) if gift and total else 0.0,
                "rounds": gift.num_rounds if gift else 0,
                "last_round": gift.last_round if gift else None,
            }
        )
    return found


def _card(card: PeerCard | None) -> Document:
    """Return the peer's announcement about itself."""
    return {
        "nickname": text(card.nickname) if card is not None else "",
        "version": text(card.version) if card is not None else "",
        "reach": text(card.reach) if card is not None else "",
        "round_trip_seconds": rounded(card.round_trip_seconds) if card is not None else None,
    }


def _traffic(status: Status, own: Status | None, *, parameters: int | None, bytes_per_value: float) -> Document:
    """Return the averaging bytes of the whole swarm, computed from the contributors, and those that this machine's node
    measured."""
    swarm: float | None = None
    if parameters is not None:
        swarm = sum(
            len(result.hosts)
            * round_bytes(num_parameters=parameters, num_workers=len(result.hosts), bytes_per_value=bytes_per_value)
            for result in status.results.values()
            if len(result.hosts) > 1
        )
    tokens = sum(result.tokens for result in status.results.values())
    return {
        "swarm_averaging_bytes": None if swarm is None else round(swarm),
        "swarm_bytes_per_token": rounded(swarm / tokens) if swarm is not None and tokens else None,
        "own": None
        if own is None
        else [
            {"kind": kind, "sent": sent, "received": received}
            for kind, (sent, received) in traffic.traffic_by_kind(own).items()
        ],
    }


def _own(own: Status, export: str) -> Document:
    """Return the part of the page about the node on this machine."""
    return {
        "saved_round": own.last_checkpoint,
        "export": export,
        "peer": own.peer,
        "device": text(progress.device_words(own)),
        "seconds": rounded(own.elapsed_seconds),
        "utilisation": [
            {"round": round_, "part": rounded(part)} for round_, part in progress.utilisation_by_round(own)[-MAX_POINTS:]
        ],
        "durations": [
            {"from": rounded(start), "to": rounded(end), "rounds": number}
            for start, end, number in progress.duration_histogram(own)
        ],
        "texts": [
            {"round": each.round, "instance": each.instance, "prompt": each.prompt, "text": units.printable(each.text)}
            for each in own.sample_texts[::-1]
        ],
        "metrics": [{"text": measure.text, "meaning": measure.meaning} for measure in measures(own) if measure.text],
        "warnings": [text(units.short_peers(message)) for message in own.warnings.values()][:MAX_DECISIONS],
        "incidents": [
            {"round": incident.round, "message": text(_where(incident) + units.short_peers(incident.message))}
            for incident in own.incidents[-MAX_DECISIONS:][::-1]
        ],
    }


def _where(incident: Incident) -> str:
    return "" if incident.instance is None else f"instance {incident.instance}, "


def _line(line: LedgerLine) -> Document:
    """Return one plan of the ledger."""
    plan = line.plan
    return {
        "round": plan.round,
        "digest": plan.digest,
        "reason": text(plan.reason),
        "peers": len(plan.roster),
        "votes": line.num_votes,
        "joined": [text(peer) for peer in line.joined],
        "departed": [text(peer) for peer in line.departed],
        "is_last": plan.is_last,
        "instances": [
            {
                "id": item.instance,
                "requested": item.requested_batch,
                "effective": item.effective_batch,
                "mode": item.mode,
                "reason": text(item.reason),
                "hosts": len(item.hosts),
            }
            for item in plan.instances
        ],
        "forks": [{"source": fork.source, "targets": list(fork.targets)} for fork in plan.forks],
        "merges": [
            {
                "subject": f"{units.instances(merge.sources)} -> {merge.target}",
                "weights": [rounded(weight) for weight in merge.weights],
                "reason": text(merge.reason),
            }
            for merge in plan.merges
        ],
    }


def text(words: str) -> str:
    """Return text from elsewhere as one line of plain ASCII of limited length. The page escapes it as well."""
    return units.shorten(units.one_line(words), MAX_TEXT)


def rounded(value: float | None) -> float | None:
    """Round to six significant digits; a value that is not finite becomes None."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
