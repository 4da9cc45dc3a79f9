"""Verbs that show a run: its page in a browser, the leaderboard, and a replay of its events."""

import argparse
import asyncio
import itertools
import math
import re
import sys
import time
from collections.abc import Callable, Sequence

from adloco_p2p.commands.audit import EXIT_BROKEN, read_journal
from adloco_p2p.commands.console import call, open_view, say, say_json
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.ledger import contributions
from adloco_p2p.core.model.telemetry import Stamped, Started
from adloco_p2p.errors import ConfigError
from adloco_p2p.runtime.node.event_sink import View
from adloco_p2p.views import units

REPLAY_SECONDS = 30.0
"""How long a replay without `--speed` takes in a terminal; elsewhere it takes no time."""
MAX_PAUSE_SECONDS = 3.0
"""The longest pause between two events of a replay."""


def dashboard(arguments: argparse.Namespace) -> int:
    """Serve the page of a run, of other people or of this machine."""
    from adloco_p2p.web.server import Address, parse_host

    if sum(map(bool, (arguments.initial_peers, arguments.workdir, arguments.runs))) != 1:
        raise ConfigError(
            "dashboard: name --initial-peers ADDR for a run of others, --workdir DIR for one on this machine, or several of"
            " this machine as RUN RUN ...",
            code="E200",
        )
    workdirs = [arguments.workdir] if arguments.workdir else arguments.runs
    labels = arguments.labels or [str(workdir) for workdir in workdirs]
    if len(labels) != len(workdirs):
        raise ConfigError(f"--labels: {len(labels)} for {len(workdirs)} runs; give one per run", code="E200")
    if not 0 <= arguments.port < 1 << 16:
        raise ConfigError(f"--port {arguments.port}: a port from 0 (any free one) to 65535 is accepted", code="E200")
    address = Address(
        host=parse_host("--host", arguments.host), port=arguments.port, public_name=_server_name(arguments.public_name)
    )
    if workdirs:
        from adloco_p2p.runtime.follow_run import follow_workdirs

        asyncio.run(follow_workdirs([*zip(labels, workdirs, strict=True)], address=address, say=say))
    else:
        from adloco_p2p.runtime.follow_swarm import follow_swarm
        from adloco_p2p.swarm.discovery.join import JoinTarget

        target = JoinTarget(initial_peers=tuple(arguments.initial_peers), run=arguments.run)
        asyncio.run(follow_swarm(target=target, address=address, count_parameters=_count_parameters, say=say))
    return 0


def _server_name(name: str) -> str:
    """Return the server's name as browsers ask for it. Raises ConfigError where it is an address with more than the name in
    it."""
    if re.fullmatch(r"[A-Za-z0-9.-]{0,253}", name):
        return name
    raise ConfigError(
        f"--public-name {name}: the name alone is accepted, such as run.example.org, without https://, port and path",
        code="E200",
    )


def _count_parameters(run: RunConfig) -> int | None:
    """Return the number of parameters of the run's model, from which its bytes follow; None where a tokenizer or weights would
    have to be fetched first."""
    if run.tokenizer.source != "bytes" or run.model.pretrained is not None or run.model.program or run.packages:
        return None
    from adloco_p2p.commands.plan import memory_need_of

    return memory_need_of(run).num_parameters


def leaderboard(arguments: argparse.Namespace) -> int:
    """Print the tokens of each peer, from the signed reports of a ledger that is checked first."""
    written = read_journal(arguments.workdir)
    if problems := written.problems():
        if arguments.json:
            say_json({"run": written.run.digest, "is_sound": False, "problems": problems})
            return EXIT_BROKEN
        say(f"the ledger is not sound, so nothing is counted; see: {call('ledger', 'verify', '--workdir', arguments.workdir)}")
        return EXIT_BROKEN
    run, credited = written.run, contributions.credited(written.genesis, written.entries)
    rows = contributions.leaderboard(credited, sequence_length=run.tokens_per_sample)
    total = sum(row.samples for row in rows)
    if arguments.json:
        document = {
            "run": run.digest,
            "sequence_length": run.tokens_per_sample,
            "samples": total,
            "tokens": total * run.tokens_per_sample,
            "peers": [
                {
                    "peer": row.peer,
                    "samples": row.samples,
                    "tokens": row.tokens,
                    "rounds": row.num_rounds,
                    "last_round": row.last_round,
                }
                for row in rows
            ],
        }
        say_json(document)
        return 0
    tokens = total * run.tokens_per_sample
    say(f"run {run.digest[:16]} {units.one_line(run.name)}: {tokens:,} tokens credited by signed reports")
    say(f"  {'':>3} {'tokens':>16} {'share':>6} {'rounds':>7} {'last':>6}  peer")
    for place, row in enumerate(rows, start=1):
        share = units.percent(row.samples / total)
        say(f"  {place:>3} {row.tokens:>16,} {share:>6} {row.num_rounds:>7} {row.last_round:>6}  {row.peer}")
    return 0


def replay(arguments: argparse.Namespace) -> int:
    """Show the events of a run again, in the views that showed them at the time."""
    from adloco_p2p.storage.event_log import recorded_events

    if arguments.speed is not None and not (arguments.speed > 0 and math.isfinite(arguments.speed)):
        raise ConfigError(
            f"--speed {arguments.speed:g}: a number above 0 is accepted; 10 is ten times as fast as it happened", code="E200"
        )
    events = recorded_events(arguments.workdir / "events.jsonl")
    is_plain = arguments.plain or not sys.stdout.isatty()
    show(events, open_view(plain=arguments.plain), pauses(events, speed=arguments.speed, is_plain=is_plain), time.sleep)
    return 0


def pauses(events: Sequence[Stamped], *, speed: float | None, is_plain: bool) -> list[float]:
    """Return the seconds to wait before each event. Clocks that were set back, and the time between two sessions, take no
    time."""
    if speed is None and is_plain:
        return [0.0] * len(events)
    gaps = [0.0]
    for before, event in itertools.pairwise(events):
        gaps.append(0.0 if isinstance(event.event, Started) else max(0.0, event.time - before.time))
    pace = speed if speed is not None else max(1.0, sum(gaps) / REPLAY_SECONDS)
    return [min(gap / pace, MAX_PAUSE_SECONDS) for gap in gaps]


def show(events: Sequence[Stamped], view: View, waits: Sequence[float], sleep: Callable[[float], None]) -> None:
    view.start()
    try:
        for event, seconds in zip(events, waits, strict=True):
            if seconds > 0:
                sleep(seconds)
            view.update(event)
    finally:
        view.stop()
