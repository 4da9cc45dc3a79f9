"""The model card of an exported model, from the run's configuration and its ledger. Nothing in it names this machine."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from adloco_p2p.commands.audit import read_entries
from adloco_p2p.config.local_files import is_hub_id
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.ledger.contributions import Contribution, credited, leaderboard
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.plan import REPORT_LAG
from adloco_p2p.core.model.plan_telemetry import task_lines
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.model.telemetry import TaskScores
from adloco_p2p.views.markdown import code, escaped
from adloco_p2p.views.run_losses import task_words

MAX_ROWS = 50
"""The most contributors and losses that are listed."""


def model_card(workdir: Path, run: RunConfig, *, round: int, instance: InstanceId) -> str:
    """Return Markdown with the front matter that the hub reads. Raises StorageError where the ledger cannot be read."""
    parts = [_front_matter(run), f"# {escaped(run.name)}", _made_by(run, round), "## Start and data", _sources(run)]
    found = read_entries(workdir, upto=round)
    if found is None:
        parts.append("The run was trained on one machine, without the network: there is no ledger of who did what.")
    else:
        genesis, entries = found
        rows = leaderboard(credited(genesis, entries), sequence_length=run.data.sequence_length)
        parts += ["## Contributors", _contributors(rows), "## Held-out loss", _losses(entries, instance, num_rounds=round)]
        if claims := [line for entry in entries for line in task_lines([signed.report for signed in entry.reports])]:
            parts += ["## Tasks", _claims(claims[-MAX_ROWS:])]
    return "\n\n".join(parts) + "\n"


def _front_matter(run: RunConfig) -> str:
    lines = ["library_name: transformers", "pipeline_tag: text-generation", "tags: [adloco]"]
    if run.model.pretrained is not None and is_hub_id(run.model.pretrained):
        lines.append(f"base_model: {run.model.pretrained}")
    if run.data.source == "hub" and run.data.path is not None and is_hub_id(run.data.path):
        lines.append(f"datasets: [{run.data.path}]")
    return "\n".join(["---", *lines, "---"])


def _made_by(run: RunConfig, round: int) -> str:
    what = f"low-rank adapters of rank {run.model.lora.rank}, merged" if run.model.lora.rank else "all parameters"
    parent = f" Its parent is run {code(run.model.parent)}." if run.model.parent else ""
    return (
        f"Trained by peers without a server ({run.mode}): {what}, state after round {round} of a run of {run.work.length}."
        f" Run `{run.digest}`, author {code(run.author)}.{parent}"
    )


def _sources(run: RunConfig) -> str:
    model, data = run.model, run.data
    if model.pretrained is None:
        start = "random weights"
    else:
        start = f"{_name(model.pretrained, model.revision)}, weights with digest {code(model.digest)}"
    if data.source == "python":
        of_one_version = f" with digest {code(data.digest)}" if data.digest else ""
        text = f"sources and documentation of Python's standard library{of_one_version}"
    elif data.source == "plugin":
        text = f"texts of the plugin {code(data.plugin)} with digest {code(data.digest)}"
    elif data.source == "hub":
        text = f"{_name(data.path or '', data.revision)}, split {escaped(data.split)}"
    else:
        text = f"{data.source} files with digest {code(data.digest)}"
    return f"- start: {start}\n- data: {text}; rows of {data.sequence_length} tokens"


def _name(source: str, revision: str | None) -> str:
    return escaped(f"{source} at {revision or 'main'}") if is_hub_id(source) else "a directory"


def _contributors(rows: Sequence[Contribution]) -> str:
    if not rows:
        return f"The ledger credits samples {REPORT_LAG} rounds late; there are none yet."
    lines = ["Samples that signed reports in the ledger prove:", "", "| peer | samples | rounds |", "|---|---|---|"]
    lines += [f"| {code(row.peer)} | {row.samples} | {row.num_rounds} |" for row in rows[:MAX_ROWS]]
    if len(rows) > MAX_ROWS:
        lines.append(f"| {len(rows) - MAX_ROWS} more | {sum(row.samples for row in rows[MAX_ROWS:])} | |")
    return "\n".join(lines)


def _claims(claims: Sequence[TaskScores]) -> str:
    lines = [
        "As peers that were drawn for it claim; nobody checked them:",
        "",
        "| before round | peer | scores |",
        "|---|---|---|",
    ]
    lines += [f"| {claim.round} | {code(claim.peer)} | {escaped('; '.join(task_words(claim)))} |" for claim in claims]
    return "\n".join(lines)


def _losses(entries: Sequence[LedgerEntry], instance: InstanceId, *, num_rounds: int) -> str:
    """List the losses of the exported instance, by the median of its hosts' reports. `num_rounds`: those of the model."""
    reported: dict[int, list[float]] = {}
    for entry in entries:
        for signed in entry.reports:
            for item in signed.report.instances:
                if item.instance == instance and item.heldout_loss is not None:
                    reported.setdefault(signed.report.round + 1, []).append(item.heldout_loss)
    if not reported:
        return "No report of an evaluation is in the ledger yet."
    rounds = sorted(reported)[-MAX_ROWS:]
    lines = ["Nats per predicted token, median of the hosts:", "", "| after round | loss |", "|---|---|"]
    lines += [f"| {number} | {median(reported[number]):.4f} |" for number in rounds]
    if rounds[-1] < num_rounds:
        late = f"Reports come into the ledger {REPORT_LAG} rounds late, so the state after round {num_rounds} has no line here."
        lines += ["", f"{late} `adloco-peer evaluate` measures it."]
    return "\n".join(lines)
