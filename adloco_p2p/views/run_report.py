"""The report of a run, from the events of one peer: pictures, the numbers behind them, and a page that shows both."""

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adloco_p2p.core.model.telemetry import Stamped
from adloco_p2p.errors import ConfigError
from adloco_p2p.views import own_part, progress, run_losses, table_rows, traffic, units
from adloco_p2p.views.html_report import Rows, Section, html_page
from adloco_p2p.views.markdown import escaped
from adloco_p2p.views.round_results import RoundResults
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import replay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTIONS = {
    "loss_by_samples.png": "Loss against the samples of the run: of all peers, where there is a ledger.",
    "loss_by_rounds.png": "Loss against outer rounds.",
    "loss_by_time.png": "Loss against running time.",
    "batches.png": "The batch that the test asked for, and the one that was used.",
    "family.png": "Forks and merges of the instances.",
    "seconds.png": "Where the time went.",
    "utilisation.png": "Part of every round in which this peer computed.",
    "durations.png": "How many rounds took how long on this peer.",
    "bytes.png": "Bytes of averaging; the table above has all traffic.",
}
"""Captions of the pictures, in the order of the page."""


FORMATS = ("png", "svg", "pdf")
"""Formats of pictures: for the screen, for a page, for print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The content of every report."""

    heading: str
    sections: Sequence[Section]
    figures: "Mapping[str, Figure]"
    """Figures by their names in `captions`."""
    captions: Mapping[str, str]
    numbers: Mapping[str, Any]
    """The numbers, ready for JSON."""

    def write(self, output: Path, *, formats: Sequence[str], as_html: bool) -> list[Path]:
        """Write the report as `draw_report` does."""
        if as_html:
            page = output if output.suffix == ".html" and not output.is_dir() else output / "report.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            pictures = {self.captions[name]: figure for name, figure in self.figures.items()}
            _write(page, html_page(self.heading, self.sections, pictures).encode())
            return [page]
        output.mkdir(parents=True, exist_ok=True)
        files = save_figures(self.figures, output, formats)
        numbers, page = output / "report.json", output / "report.md"
        _write(numbers, f"{json.dumps(self.numbers, indent=2, allow_nan=False)}\n".encode())
        _write(page, markdown_page(self.heading, self.sections, self.captions).encode())
        return [*files, numbers, page]


def draw_report(
    events: Iterable[Stamped],
    output: Path,
    *,
    swarm: Status | None = None,
    formats: Sequence[str] = FORMATS[:1],
    as_html: bool = False,
) -> list[Path]:
    """Write the pictures, `report.json` and `report.md` into the folder `output`, and return the files, the page last.
    `as_html`: write a single file instead that needs no other: `output` itself if its name ends in `.html`, otherwise
    `report.html` in the folder.

    `swarm`: the run by its ledger, with the losses of all peers; without it the losses of this peer are drawn. Raises
    ConfigError where no round has finished, since there is nothing to draw.
    """
    status = replay(events)
    if not status.results:
        raise ConfigError(f"{output}: no report, because no round has finished yet", code="E212")
    figures = _figures(status, swarm)
    summary = summarise(status)
    sections = _sections(status, summary)
    heading = f"{units.one_line(status.name)}: report of run {units.short_digest(status.run)}"
    drawn = Report(heading=heading, sections=sections, figures=figures, captions=CAPTIONS, numbers=summary)
    return drawn.write(output, formats=formats, as_html=as_html)


def _figures(status: Status, swarm: Status | None) -> "dict[str, Figure]":
    """Return the figures by their names in CAPTIONS, in that order."""
    from adloco_p2p.views import figures

    run = status if swarm is None else replace(swarm, unigram_entropy=status.unigram_entropy)
    by_samples, by_rounds, _ = figures.abscissas(run)
    timed = _timed(run, status)
    drawn = {
        "loss_by_samples.png": figures.loss(run, by_samples),
        "loss_by_rounds.png": figures.loss(run, by_rounds),
        "loss_by_time.png": figures.loss(timed, figures.abscissas(timed)[2]),
        "batches.png": figures.batches(status),
        "family.png": figures.family(status),
        "seconds.png": figures.seconds(status),
        "utilisation.png": figures.utilisation(status),
        "durations.png": figures.durations(status),
        "bytes.png": figures.traffic(status),
    }
    return {name: drawn[name] for name in CAPTIONS}


def _timed(run: Status, own: Status) -> Status:
    """Return the run with only those rounds that this peer has seen end, at its running time then, because a ledger has no
    clock."""
    ends: dict[int, float] = {}
    for result in own.results.values():
        ends[result.round] = max(ends.get(result.round, 0.0), result.elapsed_seconds)
    seen = {key: replace(result, elapsed_seconds=ends[key[0]]) for key, result in run.results.items() if key[0] in ends}
    return replace(run, results=RoundResults(seen))


def save_figures(drawn: "Mapping[str, Figure]", output: Path, formats: Sequence[str]) -> list[Path]:
    """Save the figures under their names, in every format."""
    from adloco_p2p.views.figures import DOTS_PER_INCH

    paths = [(output / name).with_suffix(f".{kind}") for kind in formats for name in drawn]
    for path in paths:
        content = io.BytesIO()
        figure = drawn[path.with_suffix(".png").name]
        figure.savefig(content, format=path.suffix[1:], dpi=DOTS_PER_INCH, facecolor="white")
        _write(path, content.getvalue())
    return paths


def _write(path: Path, content: bytes) -> None:
    """Replace a file. On a full disk nothing of the new content stays, and an older file does. Raises OSError."""
    aside = path.with_name(f"{path.name}.tmp")
    try:
        aside.write_bytes(content)
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise


# --- numbers ---------------------------------------------------------------------------------------------------------


def summarise(status: Status) -> dict[str, Any]:
    """Return the numbers of the run, ready for JSON; an unknown or infinite number is None."""
    totals = traffic.totals(status)
    loss = run_losses.final_heldout(status)
    return {
        "run": status.run,
        "name": status.name,
        "peer": status.peer,
        "mode": status.mode,
        "device": status.device,
        "parameters": status.parameters,
        "is_finished": status.finish is not None,
        "heldout_loss": loss,
        "heldout_by_data": {name: units.finite(found) for name, found in run_losses.heldout_by_data(status).items()},
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
            for kind, (sent, received) in traffic.traffic_by_kind(status).items()
        },
        "bytes_sent_per_token": traffic.bytes_per_token(status),
        "seconds": round(status.elapsed_seconds, 3),
        "training_seconds": round(totals.training_seconds, 3),
        "compute_utilisation": progress.compute_utilisation(status),
        "compute_utilisation_by_round": [
            {"round": round_, "part": round(part, 4)} for round_, part in progress.utilisation_by_round(status)
        ],
        "seconds_by_round": [
            {"round": round_, "seconds": round(duration, 3)} for round_, duration in progress.round_durations(status)
        ],
        "events": dict(sorted(status.counts.items())),
        "instances": [_instance(status, instance) for instance in sorted(status.lives)],
        "decisions": [asdict(decision) for decision in status.decisions],
        "tasks": [asdict(claim) for claim in status.task_scores.values()],
    }


def _instance(status: Status, instance: int) -> dict[str, Any]:
    results = [result for result in status.results.values() if result.instance == instance]
    heldout = [loss for result in results if (loss := units.finite(result.heldout_loss)) is not None]
    latest = run_losses.latest_result(status, instance)
    life = status.lives[instance]
    return {
        "instance": instance,
        "first_round": life.start,
        "end_round": life.end,
        "rounds": len(results),
        "samples": sum(result.samples for result in results),
        "tokens": sum(result.tokens for result in results),
        "loss": units.finite(latest.loss) if latest else None,
        "heldout_loss": units.finite(run_losses.latest_heldout(status, instance)),
        "best_heldout_loss": min(heldout, default=None),
        "heldout_by_data": {name: units.finite(loss) for name, loss in run_losses.heldout_by_data(status, instance).items()},
        "largest_effective_batch": max((result.effective_batch for result in results), default=None),
        "fate": run_losses.fate(status, instance),
    }


# --- the page --------------------------------------------------------------------------------------------------------


def _sections(status: Status, summary: Mapping[str, Any]) -> list[Section]:
    return [
        ("", _overview(status, summary)),
        ("Instances", _instances(summary)),
        ("Decisions", _decisions(status)),
        *([("Tasks", _tasks(status))] if status.task_scores else []),
        *([("Sample texts", _sample_texts(status))] if status.sample_texts else []),
        *([("Bans", _bans(status))] if status.bans else []),
        *([("Troubles", _troubles(status))] if status.incidents else []),
    ]


def markdown_page(heading: str, sections: Sequence[Section], captions: Mapping[str, str]) -> str:
    """Return the page. `captions`: captions of the pictures beside the page, by name."""
    parts = [f"# {escaped(heading)}"]
    for title, rows in sections:
        parts += [f"## {title}"] if title else []
        parts.append(_table(rows))
    parts += ["## Pictures", *(f"![{caption}]({name})\n\n{caption}" for name, caption in captions.items())]
    parts.append("The numbers are in [report.json](report.json).")
    return "\n\n".join(parts) + "\n"


def _table(rows: Rows) -> str:
    """Return the table in Markdown; a single cell is a sentence."""
    if len(rows) == 1:
        return escaped(rows[0][0])
    lines = [rows[0], tuple("---" for _ in rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(map(escaped, cells)) + " |" for cells in lines)


def _overview(status: Status, summary: Mapping[str, Any]) -> Rows:
    totals = traffic.totals(status)
    loss = run_losses.final_heldout(status)
    state = "finished" if status.finish is not None else "not finished"
    entropy = "" if status.unigram_entropy is None else f" (unigram entropy of the text: {status.unigram_entropy:.3f})"
    return [
        ("", ""),
        ("peer", f"{units.one_line(status.peer)} on {status.device}"),
        ("mode", status.mode),
        ("run", f"{progress.position(status)}, {state}"),
        ("rounds", f"{summary['rounds']}, by this peer"),
        ("held-out loss", f"{units.loss(loss)} nats per token{entropy}"),
        ("perplexity", units.perplexity(loss)),
        ("trained", f"{units.count(totals.samples)} samples, {units.count(totals.tokens)} tokens, by this peer"),
        ("network", f"{units.size(totals.bytes_sent)} sent, {units.size(totals.bytes_received)} received"),
        *(
            (f"of it {kind}", f"{units.size(sent)} sent, {units.size(received)} received")
            for kind, (sent, received) in traffic.traffic_by_kind(status).items()
        ),
        ("per token", f"{units.size(traffic.bytes_per_token(status))} sent, all traffic, by the tokens of this peer"),
        ("running time", units.duration(status.elapsed_seconds)),
        ("of it computing", units.percent(progress.compute_utilisation(status))),
    ]


def _instances(summary: Mapping[str, Any]) -> Rows:
    rows = (
        (
            str(row["instance"]),
            f"{row['first_round']} to {row['end_round'] - 1}",
            units.count(row["samples"]),
            units.loss(row["loss"]),
            "; ".join(
                [units.loss(row["heldout_loss"]), *(f"{name} {units.loss(on)}" for name, on in row["heldout_by_data"].items())]
            ),
            str(row["largest_effective_batch"] or units.MISSING),
            row["fate"],
        )
        for row in summary["instances"]
    )
    return [("instance", "rounds", "samples", "loss", "held-out", "largest batch", "end"), *rows]


def _decisions(status: Status) -> Rows:
    if not status.decisions:
        return [("None: no instance was forked or merged, and no mode was switched.",)]
    return [
        ("before round", "what", "instances", "weights", "why"),
        *(
            (
                str(decision.round),
                decision.kind,
                table_rows.subject(decision),
                units.weights(decision.weights) or units.MISSING,
                units.one_line(decision.reason),
            )
            for decision in status.decisions
        ),
    ]


def _tasks(status: Status) -> Rows:
    """Return the scores that peers claim; nobody checks them."""
    return [
        ("before round", "claimed by", "scores"),
        *(
            (str(claim.round), units.one_line(claim.peer), "; ".join(run_losses.task_words(claim)))
            for claim in status.task_scores.values()
        ),
    ]


def _sample_texts(status: Status) -> Rows:
    return [
        ("round", "instance", "prompt", "the model goes on"),
        *(
            (str(each.round), str(each.instance), units.one_line(each.prompt), " ".join(units.printable(each.text).split()))
            for each in status.sample_texts
        ),
    ]


def _bans(status: Status) -> Rows:
    return [("peer", "ban"), *own_part.ban_words(status).items()]


def _troubles(status: Status) -> Rows:
    return [
        ("round", "instance", "what"),
        *(
            (
                str(incident.round),
                units.MISSING if incident.instance is None else str(incident.instance),
                units.one_line(incident.message),
            )
            for incident in status.incidents
        ),
    ]
