"""Verbs that only look, at a configuration or at the history of runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adloco_p2p.commands.console import remark, say, say_exactly, say_json
from adloco_p2p.config.load import load_peer, load_run, show
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.telemetry import Stamped
from adloco_p2p.errors import ConfigError
from adloco_p2p.storage.disk import reported

if TYPE_CHECKING:
    from adloco_p2p.views.status import Status


def show_config(arguments: argparse.Namespace) -> int:
    """Print every setting of a run, or of this machine, with its value, origin and meaning."""
    say_shown = say_exactly if arguments.json else say
    is_machine = arguments.peer or arguments.peer_config is not None or bool(arguments.peer_set)
    if is_machine and (arguments.config is not None or arguments.set):
        raise ConfigError("--peer shows this machine's settings: leave out CONFIG and --set, which are a run's", code="E200")
    if is_machine:
        say_shown(show(load_peer(arguments.peer_config, arguments.peer_set), arguments.json))
    else:
        loaded = load_run(arguments.config, arguments.set)
        say_shown(show(loaded, arguments.json))
        for notice in loaded.notices:
            remark(notice)
        if not arguments.json:
            _say_prices(loaded.value)
    return 0


def _say_prices(run: RunConfig) -> None:
    """Print the prices of the codec, where they were measured."""
    from adloco_p2p.views.cost_model import PRICED, in_words, prices_of

    if measured := [in_words(price, hosts=hosts) for hosts, price in prices_of(run).items()]:
        say(f"\n# codec {run.averaging.codec}, {PRICED}: {', '.join(measured)} (docs/results/bytes.md)")


def report(arguments: argparse.Namespace) -> int:
    """Draw the run from the events of its peer and from its ledger, if it has one, or draw several runs side by side."""
    from adloco_p2p.storage.event_log import recorded_events
    from adloco_p2p.views.run_report import FORMATS, draw_report

    if bool(arguments.runs) == (arguments.workdir is not None):
        raise ConfigError("report: name one run by --workdir DIR, or several as RUN RUN ...", code="E200")
    if arguments.labels and not arguments.runs:
        raise ConfigError("--labels: labels are for several runs, RUN RUN ...; leave it out", code="E200")
    if arguments.runs:
        paths = _comparison(arguments)
    else:
        events = recorded_events(arguments.workdir / "events.jsonl")
        swarm = _status_of_all(arguments.workdir, events)
        with reported(arguments.output):
            paths = draw_report(events, arguments.output, swarm=swarm, formats=FORMATS, as_html=arguments.html)
    if arguments.json:
        say_json({"files": [str(path) for path in paths]})
        return 0
    page = paths[-1]
    if arguments.html:
        say(str(page))
    else:
        say(f"{page.parent}: {len(paths)} files; begin with {page.name}")
    return 0


def _comparison(arguments: argparse.Namespace) -> list[Path]:
    """Draw several runs side by side. Raises ConfigError where a directory holds none."""
    from adloco_p2p.storage.event_log import recorded_events
    from adloco_p2p.storage.workdir import read_run
    from adloco_p2p.views.comparison import ComparedRun, draw_comparison
    from adloco_p2p.views.run_report import FORMATS
    from adloco_p2p.views.status_fold import replay

    labels = arguments.labels or [str(workdir) for workdir in arguments.runs]
    if len(labels) != len(arguments.runs):
        raise ConfigError(f"--labels: {len(labels)} for {len(arguments.runs)} runs; give one per run", code="E200")
    runs = []
    for workdir, label in zip(arguments.runs, labels, strict=True):
        events, run = recorded_events(workdir / "events.jsonl", option="RUN"), read_run(workdir)
        own = replay(events)
        of_all = _status_of_all(workdir, events) or own
        runs.append(ComparedRun(label=label, seed=run.seed if run is not None else 0, own=own, of_all=of_all))
    with reported(arguments.output):
        return draw_comparison(runs, arguments.output, formats=FORMATS, as_html=arguments.html)


def _status_of_all(workdir: Path, events: Sequence[Stamped]) -> "Status | None":
    """Return the state of the run by its ledger; None where it keeps none."""
    if not (workdir / "journal.bin").exists():
        return None
    from adloco_p2p.commands.audit import read_journal
    from adloco_p2p.runtime.adapters.run_history import status_of_all

    written = read_journal(workdir)
    return status_of_all(written.run, written.entries, events)
