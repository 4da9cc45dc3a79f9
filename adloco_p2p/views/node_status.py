"""The status of a node as plain fields, named as in `NodeStatus` of the control API, and as lines of text. Pure."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from adloco_p2p.views import own_part, progress, table_rows, traffic, units
from adloco_p2p.views.metrics import Measure, measures
from adloco_p2p.views.status import ORDERS, Status
from adloco_p2p.views.table_rows import InstanceRow, PeerRow

MAX_DECISIONS = 10
"""How many of the newest decisions a summary names."""
_PEERS = ("peer", "is_self", "state", "role", "samples_per_second", "share", "last_report", "upload_bytes_per_second")
_CARD = ("nickname", "version", "reach", "round_trip_seconds")
_INSTANCES = (
    *("instance", "phase", "step", "num_steps", "loss", "heldout_loss"),
    *("requested_batch", "effective_batch", "mode", "reason", "num_hosts"),
)


def summary(status: Status) -> dict[str, Any]:
    """Return everything that a `status` verb or a health check asks for."""
    rows, peers = table_rows.instance_rows(status), table_rows.peer_rows(status)
    return {
        "name": status.name,
        "run": status.run,
        "peer": status.peer,
        "state": status.state,
        "phase": progress.phase(status),
        "round": status.current_round,
        "rounds": status.rounds or 0,
        "samples": status.samples,
        "samples_given": progress.samples_given(status),
        "fraction": progress.run_fraction(status),
        "eta_seconds": progress.eta_seconds(status),
        "elapsed_seconds": status.elapsed_seconds,
        "saved_round": status.last_checkpoint,
        "device": progress.device_words(status),
        "metrics": [_metric(measure) for measure in measures(status)],
        "join_link": status.join_link,
        "admission": status.admission,
        "protocol": status.current_plan.protocol if status.current_plan else None,
        "upgrade_round": status.plans[-1].upgrade_round if status.plans else None,
        "orders": status.orders,
        "ended_by_signer": own_part.ended_by_signer(status),
        "instances": [_instance(row) for row in rows],
        "peers": [_peer(row) for row in peers],
        "traffic": asdict(traffic.bandwidth(status)),
        "decisions": [
            {"round": made.round, "kind": made.kind, "subject": table_rows.subject(made), "reason": made.reason}
            for made in status.decisions[: -MAX_DECISIONS - 1 : -1]
        ],
        "conditions": [
            *({"key": key, "message": message} for key, message in status.warnings.items()),
            *({"key": f"ban {peer}", "message": f"{peer} is {words}"} for peer, words in own_part.ban_words(status).items()),
        ],
    }


def _instance(row: InstanceRow) -> dict[str, Any]:
    """Return the fields of a row. The live losses of a run that diverges are not finite; neither JSON nor the control API holds
    such numbers, so they are None."""
    fields = {name: asdict(row)[name] for name in _INSTANCES}
    return fields | {name: units.finite(fields[name]) for name in ("loss", "heldout_loss")}


def _peer(row: PeerRow) -> dict[str, Any]:
    card = asdict(row.card) if row.card is not None else {}
    fields = {name: value for name, value in asdict(row).items() if name in _PEERS}
    return fields | {"instances": list(row.instances)} | {name: card.get(name) for name in _CARD}


def _metric(measure: Measure) -> dict[str, Any]:
    samples = [{"labels": list(labels), "value": value} for labels, value in measure.samples.items()]
    return {
        "name": measure.name,
        "unit": measure.unit,
        "meaning": measure.meaning,
        "text": measure.text,
        "label_names": list(measure.label_names),
        "samples": samples,
    }


def _position(fields: Mapping[str, Any]) -> str:
    if fields["samples"] is None:
        return f"{min(fields['round'], fields['rounds'])}/{fields['rounds']}"
    return f"{fields['round']}, {fields['samples_given']:,}/{fields['samples']:,} samples"


def _protocol(fields: Mapping[str, Any]) -> str:
    if fields["protocol"] is None:
        return ""
    coming = fields["upgrade_round"]
    upgrade = "" if coming is None else f", {fields['protocol'] + 1} from round {coming} on"
    return f"protocol {fields['protocol']}{upgrade}"


def lines(fields: Mapping[str, Any]) -> list[str]:
    """Return the summary for people, one fact a line."""
    found = [
        _line("run", units.one_line(fields["name"]), units.short_digest(fields["run"]), _protocol(fields)),
        _line("peer", units.short_peer(fields["peer"]), f"on {fields['device']}"),
        _line("state", fields["state"], fields["phase"] if fields["phase"] != fields["state"] else ""),
        _line(
            "round",
            _position(fields),
            units.percent(fields["fraction"]),
            f"{units.duration(fields['eta_seconds'])} left" if fields["eta_seconds"] is not None else "",
        ),
        _line("traffic", *traffic_words(fields["traffic"])),
    ]
    known = [metric["text"] for metric in fields["metrics"] if metric["text"]]
    found += [_line("so far" if index == 0 else "", *known[index : index + 3]) for index in range(0, len(known), 3)]
    found += [
        _line(
            f"instance {row['instance']}",
            row["phase"],
            f"loss {units.loss(row['loss'])}",
            f"held-out {units.loss(row['heldout_loss'])}",
            f"batch {units.count(row['effective_batch'])} (asked {units.count(row['requested_batch'])})",
            row["mode"],
        )
        for row in fields["instances"]
    ]
    found += [peer_line for row in fields["peers"] for peer_line in _peer_lines(row)]
    scores = next(metric for metric in fields["metrics"] if metric["name"] == "adloco_task_score")
    found += [
        _line("task", task, f"{metric} {sample['value']:.4f}", f"claimed by {units.short_peer(units.one_line(peer))}")
        for sample in scores["samples"]
        for task, metric, peer in [sample["labels"]]
    ]
    if orders := fields["ended_by_signer"] or fields["orders"]:
        found.append(_line("ordered", units.one_line(orders)))
    if fields["admission"]:
        found.append(_line("admission", fields["admission"]))
    if fields["join_link"]:
        found.append(_line("address", fields["join_link"]))
    found += [_line("warning", units.short_peers(item["message"])) for item in fields["conditions"] if item["key"] != ORDERS]
    return found


def _peer_lines(row: Mapping[str, Any]) -> list[str]:
    """Return the peer's place in the run and, below it, what is known of its link and what it announces."""
    place = _line(
        "this peer" if row["is_self"] else "peer",
        units.short_peer(units.one_line(row["peer"])),
        units.one_line(row["nickname"] or ""),
        row["state"],
        row["role"],
        f"{units.count(row['samples_per_second'])} samples/s" if row["samples_per_second"] else "",
        f"{units.percent(row['share'])} of the work" if row["share"] is not None else "",
    )
    link = _line(
        "",
        f"uplink {units.link_rate(row['upload_bytes_per_second'])}/s" if row["upload_bytes_per_second"] else "",
        f"round trip {units.milliseconds(row['round_trip_seconds'])}" if row["round_trip_seconds"] is not None else "",
        f"reach {units.one_line(row['reach'])}" if row["reach"] else "",
        f"version {units.one_line(row['version'])}" if row["version"] else "",
    )
    return [place, link] if link else [place]


def traffic_words(traffic: Mapping[str, Any]) -> list[str]:
    """Return `up 34.5 MB, 1.20 MB/s of 2.00 MB/s`, the same for down, and what is left of the day's budget."""
    words = []
    for way, total in (("up", traffic["sent_bytes"]), ("down", traffic["received_bytes"])):
        rate, cap = traffic[f"{way}_bytes_per_second"], traffic[f"{way}_cap_bytes_per_second"]
        text = f"{way} {units.size(total)}"
        if rate is not None:
            text += f", {units.size(rate)}/s"
        if cap:
            text += f" of {units.size(cap)}/s" if rate is not None else f", cap {units.size(cap)}/s"
        words.append(text)
    if traffic["is_quiet"]:
        words.append("quiet hours")
    if traffic["budget_bytes"]:
        words.append(f"{units.size(traffic['budget_left_bytes'])} of {units.size(traffic['budget_bytes'])} left today")
    return words


def _line(label: str, *words: str) -> str:
    return f"{label.ljust(11)} {'  '.join(word for word in words if word)}".rstrip()
