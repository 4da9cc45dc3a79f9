"""The report of a run: pictures, the numbers behind them, and a page that shows both. Made from the events of one peer."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adloco_p2p.core.model.telemetry import Stamped
from adloco_p2p.errors import ConfigError
from adloco_p2p.views import derived, units
from adloco_p2p.views.status import Status, replay

CAPTIONS = {
    "loss_by_samples.png": "Loss against the samples that this peer trained on.",
    "loss_by_rounds.png": "Loss against outer rounds.",
    "loss_by_time.png": "Loss against running time.",
    "batches.png": "The batch that the test asked for, and the one that was used.",
    "family.png": "Forks and merges of the instances.",
    "seconds.png": "Where the time went.",
    "bytes.png": "Bytes of averaging; the table above has all traffic.",
}
"""Pictures in the order of the page."""


def draw_report(events: Iterable[Stamped], output: Path) -> list[Path]:
    """Write the pictures, `report.json` and `report.md` into the folder `output`; return the files, the page last.

    Raises ConfigError where no round has finished: there is nothing to draw.
    """
    status = replay(events)
    if not status.results:
        raise ConfigError(f"{output}: no report, because no round has finished yet", code="E212")
    output.mkdir(parents=True, exist_ok=True)
    pictures = _pictures(status, output)
    summary = summarise(status)
    numbers, page = output / "report.json", output / "report.md"
    numbers.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    page.write_text(_page(status, summary), encoding="utf-8")
    return [*pictures, numbers, page]


def _pictures(status: Status, output: Path) -> list[Path]:
    from adloco_p2p.views import figures

    drawn = {f"loss_by_{abscissa.name}.png": figures.loss(status, abscissa) for abscissa in figures.abscissas(status)}
    drawn["batches.png"] = figures.batches(status)
    drawn["family.png"] = figures.family(status)
    drawn["seconds.png"] = figures.seconds(status)
    drawn["bytes.png"] = figures.traffic(status)
    for name in CAPTIONS:
        drawn[name].savefig(output / name, dpi=figures.DOTS_PER_INCH, facecolor="white")
    return [output / name for name in CAPTIONS]


# --- numbers ---------------------------------------------------------------------------------------------------------


def summarise(status: Status) -> dict[str, Any]:
    """The numbers of the run, ready for JSON; what is not known (or not finite) is none."""
    totals = derived.totals(status)
    loss = derived.final_heldout(status)
    return {
        "run": status.run,
        "name": status.name,
        "peer": status.peer,
        "mode": status.mode,
        "device": status.device,
        "parameters": status.parameters,
        "is_finished": status.finish is not None,
        "heldout_loss": loss,
        "perplexity": units.finite(math.exp(min(loss, 700.0))) if loss is not None else None,
        "unigram_entropy": status.unigram_entropy,
        "rounds": len({result.round for result in status.results.values()}),
        "rounds_planned": status.rounds,
        "samples_planned": status.samples,
        "samples": totals.samples,
        "tokens": totals.tokens,
        "bytes_sent": totals.bytes_sent,
        "bytes_received": totals.bytes_received,
        "traffic": {
            kind: {"bytes_sent": sent, "bytes_received": received}
            for kind, (sent, received) in derived.traffic_by_kind(status).items()
        },
        "bytes_sent_per_token": derived.bytes_per_token(status),
        "seconds": round(status.elapsed_seconds, 3),
        "training_seconds": round(totals.training_seconds, 3),
        "compute_utilisation": derived.compute_utilisation(status),
        "events": dict(sorted(status.counts.items())),
        "instances": [_instance(status, instance) for instance in sorted(status.lives)],
        "decisions": [asdict(decision) for decision in status.decisions],
        "tasks": [asdict(claim) for claim in status.task_scores.values()],
    }


def _instance(status: Status, instance: int) -> dict[str, Any]:
    results = [result for result in status.results.values() if result.instance == instance]
    heldout = [loss for result in results if (loss := units.finite(result.heldout_loss)) is not None]
    latest = derived.latest_result(status, instance)
    life = status.lives[instance]
    return {
        "instance": instance,
        "first_round": life.start,
        "end_round": life.end,
        "rounds": len(results),
        "samples": sum(result.samples for result in results),
        "tokens": sum(result.tokens for result in results),
        "loss": units.finite(latest.loss) if latest else None,
        "heldout_loss": units.finite(derived.latest_heldout(status, instance)),
        "best_heldout_loss": min(heldout, default=None),
        "largest_effective_batch": max((result.effective_batch for result in results), default=None),
        "fate": derived.fate(status, instance),
    }


# --- the page --------------------------------------------------------------------------------------------------------


def _page(status: Status, summary: Mapping[str, Any]) -> str:
    sections = [
        f"# {units.one_line(status.name)}: report of run {units.short_digest(status.run)}",
        _overview(status, summary),
        "## Instances",
        _instances(summary),
        "## Decisions",
        _decisions(status),
        *(["## Tasks", _tasks(status)] if status.task_scores else []),
        *(["## Troubles", _troubles(status)] if status.incidents else []),
        "## Pictures",
        *(f"![{caption}]({name})\n\n{caption}" for name, caption in CAPTIONS.items()),
        "The numbers are in [report.json](report.json).",
    ]
    return "\n\n".join(sections) + "\n"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |" for cells in lines)


def _overview(status: Status, summary: Mapping[str, Any]) -> str:
    totals = derived.totals(status)
    loss = derived.final_heldout(status)
    state = "finished" if status.finish is not None else "not finished"
    entropy = "" if status.unigram_entropy is None else f" (unigram entropy of the text: {status.unigram_entropy:.3f})"
    return _table(
        ("", ""),
        [
            ("peer", f"{units.one_line(status.peer)} on {status.device}"),
            ("mode", status.mode),
            ("run", f"{derived.position(status)}, {state}"),
            ("rounds", f"{summary['rounds']}, by this peer"),
            ("held-out loss", f"{units.loss(loss)} nats per token{entropy}"),
            ("perplexity", units.perplexity(loss)),
            ("trained", f"{units.count(totals.samples)} samples, {units.count(totals.tokens)} tokens, by this peer"),
            ("network", f"{units.size(totals.bytes_sent)} sent, {units.size(totals.bytes_received)} received"),
            *(
                (f"of it {kind}", f"{units.size(sent)} sent, {units.size(received)} received")
                for kind, (sent, received) in derived.traffic_by_kind(status).items()
            ),
            ("per token", f"{units.size(derived.bytes_per_token(status))} sent, all traffic, by the tokens of this peer"),
            ("running time", units.duration(status.elapsed_seconds)),
            ("of it computing", units.percent(derived.compute_utilisation(status))),
        ],
    )


def _instances(summary: Mapping[str, Any]) -> str:
    rows = (
        (
            str(row["instance"]),
            f"{row['first_round']} to {row['end_round'] - 1}",
            units.count(row["samples"]),
            units.loss(row["loss"]),
            units.loss(row["heldout_loss"]),
            str(row["largest_effective_batch"] or units.MISSING),
            row["fate"],
        )
        for row in summary["instances"]
    )
    return _table(("instance", "rounds", "samples", "loss", "held-out", "largest batch", "end"), rows)


def _decisions(status: Status) -> str:
    if not status.decisions:
        return "None: no instance was forked or merged, and no mode was switched."
    return _table(
        ("before round", "what", "instances", "weights", "why"),
        (
            (
                str(decision.round),
                decision.kind,
                derived.subject(decision),
                units.weights(decision.weights) or units.MISSING,
                units.one_line(decision.reason),
            )
            for decision in status.decisions
        ),
    )


def _tasks(status: Status) -> str:
    """As peers claim them: nobody checks them."""
    return _table(
        ("before round", "claimed by", "scores"),
        (
            (str(claim.round), units.one_line(claim.peer), "; ".join(derived.task_words(claim)))
            for claim in status.task_scores.values()
        ),
    )


def _troubles(status: Status) -> str:
    return _table(
        ("round", "instance", "what"),
        (
            (
                str(incident.round),
                units.MISSING if incident.instance is None else str(incident.instance),
                units.one_line(incident.message),
            )
            for incident in status.incidents
        ),
    )
