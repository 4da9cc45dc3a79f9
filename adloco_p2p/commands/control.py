"""Verbs that look at the node that runs in a working directory, and send it requests."""

import argparse
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from adloco_p2p.commands.console import as_called, call, say, say_json
from adloco_p2p.commands.train import leads_to_others
from adloco_p2p.control.api import API_VERSION
from adloco_p2p.control.client import ControlClient, starting_status
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.commands import COMMANDS
from adloco_p2p.core.model.telemetry import Finished, Resumed, Stamped, Started, Stopped
from adloco_p2p.error_codes import ERROR_CODES
from adloco_p2p.errors import NoNodeError, SwarmError
from adloco_p2p.runtime.node.event_sink import View, stamp
from adloco_p2p.storage.event_log import recorded_events
from adloco_p2p.storage.workdir import holder_of, meant_workdir, read_command, read_run
from adloco_p2p.views import own_part, progress, units
from adloco_p2p.views.node_status import lines, summary, traffic_words
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import replay

Batch: TypeAlias = tuple[list[Stamped], bool]
"""Events, and whether they are of the past."""

ENDED = "the node has ended; waiting for it to come back"
SILENT = "the node runs, but does not answer (suspended, or the machine is too busy); waiting for it"
QUIET_SECONDS = 20.0
"""How long a watched node may send nothing; a working one sends the load of the machine every few seconds."""
QUIET = f"no news from the node for {QUIET_SECONDS:.0f} s (suspended, or the machine is too busy)"
RETRY_SECONDS = 1.0
"""How often a watcher checks whether the node is back."""


def status(arguments: argparse.Namespace) -> int:
    """Print the status of the node."""
    holder = holder_of(arguments.workdir)
    if holder is not None and holder.starting is not None:
        _show(arguments, starting_status(holder.starting), holder.words)
        return 0
    last = _last_status(arguments.workdir) if holder is None else None
    if last is not None and last.finish is not None:
        _show(arguments, {"api_version": API_VERSION, **summary(last)}, _last_words(arguments.workdir, last))
        return 0
    with _asking(arguments.workdir, last) as client:
        fields = client.status()
    _show(arguments, fields, "\n".join(lines(fields)))
    return 0


def _show(arguments: argparse.Namespace, fields: Mapping[str, Any], words: str) -> None:
    """Print fields for a program, or words for a person."""
    if arguments.json:
        say_json(fields)
    else:
        say(words)


def ended(workdir: Path) -> Status | None:
    """Return how the run of the directory ended; None where it has not. Raises ConfigError where the events cannot be read."""
    status = _last_status(workdir)
    return status if status is not None and status.finish is not None else None


def _last_status(workdir: Path) -> Status | None:
    """Return the status of a run in the directory by its events; None where there is none."""
    path = workdir / "events.jsonl"
    return replay(recorded_events(path)) if read_run(workdir) is not None and path.exists() else None


def _last_words(workdir: Path, status: Status) -> str:
    finish, run = status.finish, read_run(workdir)
    assert finish is not None
    loss = f", held-out loss {units.loss(finish.heldout_loss)}" if finish.heldout_loss is not None else ""
    order = f"; {words}" if (words := own_part.ended_by_signer(status)) else ""
    end = f"finished: {progress.position(status)}{loss}, {units.count(finish.tokens)} tokens by this peer{order}"
    pictures = f"  the pictures: {call('report', '--workdir', workdir, '--output', 'DIR')}"
    if run is not None and run.model.program:
        return f"{end}\n{pictures}"  # the program has the model
    if status.last_checkpoint is None:
        return f"{end}\n{pictures}\n  no model of it is here: peers that trained, or kept, can export it"
    model = f"  the model:    {call('export', '--workdir', workdir, '--output', 'DIR')}"
    following = f"  a new run from it: {call('start', 'CONFIG', '--workdir', 'NEW', '--set', 'model.pretrained=DIR')}"
    return "\n".join([end, model, pictures, following])


def _continuing(workdir: Path, last: Status | None) -> str:
    """Explain why the last node of the directory stopped, and how its run can go on; empty where there is no run."""
    if read_run(workdir) is None:
        return ""
    if last is not None and last.finish is not None:
        return "its run is complete, as `adloco-peer status` shows"
    why = f"the last one stopped: {last.stopping}; " if last is not None and last.state == "stopped" else ""
    stopping = (last.stopping if last is not None else None) or ""
    if stopping.startswith(ERROR_CODES["E221"].title):  # the same command would be refused again
        return f"{why}with another link its run goes on: {call('join', '--initial-peers', 'LINK', '--workdir', workdir)}"
    command = _under(workdir, read_command(workdir))
    if command.startswith("adloco-peer start ") or leads_to_others(workdir):  # a link that is needed is not kept
        return f"{why}its run goes on with: {as_called(command) if command else call('join', '--workdir', workdir)}"
    return f"{why}its run goes on with the command that started it"


def _under(workdir: Path, command: str) -> str:
    """Return the command with the directory's present name: it may have been moved, or the command given elsewhere."""
    try:
        words = shlex.split(command)
    except ValueError:  # a damaged file
        return command
    for number, word in enumerate(words):
        name, _, value = word.partition("=")
        if len(name) > 2 and "--workdir".startswith(name):
            words[number : number + (1 if value else 2)] = ["--workdir", str(workdir)]
    return shlex.join(words)


def _own_ban(last: Status | None) -> str:
    """Explain that the peer of the directory is banned, by whom and why; empty where its events contain no such order."""
    if last is None or (words := own_part.ban_words(last).get(last.peer)) is None:
        return ""
    return f"this peer is {words}; a signer of the run lifts a ban with `adloco-peer unban`"


def _starting(workdir: Path) -> str | None:
    """Return the phase of a node that is starting and cannot be asked yet; None where there is none."""
    holder = holder_of(workdir)
    return holder.starting if holder is not None and not holder.is_helper else None


def _client(workdir: Path) -> ControlClient:
    """Return a client of the directory's node. Raises NoNodeError where no node has its address there."""
    try:
        return ControlClient(workdir)
    except NoNodeError as error:
        raise _explained(error, workdir) from None


@contextmanager
def _asking(workdir: Path, last: Status | None = None) -> Iterator[ControlClient]:
    """Return a client for a question to the directory's node. Raises NoNodeError where none answers, since a killed node leaves
    its address behind. `last`: see `_explained`."""
    try:
        with ControlClient(workdir) as client:
            yield client
    except NoNodeError as error:
        raise _explained(error, workdir, last) from None


def _explained(error: NoNodeError, workdir: Path, last: Status | None = None) -> NoNodeError:
    """Return the error with the process that is at work there, if any, or else the state of its run. `last` is that state by
    its events, where the caller has read them already, since a long run has many."""
    holder = holder_of(workdir)
    if holder is None and (meant := meant_workdir(workdir)):
        return NoNodeError(f"{error}; did you mean {meant}?")
    if holder is None:
        last = last or _last_status(workdir)
        if words := _own_ban(last):
            return NoNodeError(f"{error}; {words}", code="E221")
        words = _continuing(workdir, last)
        return NoNodeError(f"{error}; {words}") if words else error
    if holder.is_helper:
        problem = f"process {holder.pid} is a bootstrap, which trains nothing"
    elif holder.starting is not None:
        problem = f"the node is starting ({holder.starting}); ask again in a moment, or end it: kill {holder.pid}"
    else:
        problem = f"process {holder.pid} does not listen: it is ending, or was started with control_address=off"
    return NoNodeError(f"{workdir}: {problem}")


def command(arguments: argparse.Namespace) -> int:
    """Ask the node for one of `COMMANDS`."""
    with _asking(arguments.workdir) as client:
        words = client.command(arguments.command)
        _show(arguments, {"command": arguments.command, "words": words}, words)
        if getattr(arguments, "wait", False):
            _wait(client, until=COMMANDS[arguments.command].done_in)
    return 0


def _wait(client: ControlClient, *, until: str) -> None:
    """Wait until the node is in this state, or ends. Events of the past come at once, so the state is checked then and after
    every event: the node may have reached it before."""
    try:
        for _ in client.watch():
            if client.status()["state"] == until:
                return
    except SwarmError:
        return  # it has ended


def bandwidth(arguments: argparse.Namespace) -> int:
    """Change the caps, or show them."""
    with _asking(arguments.workdir) as client:
        if arguments.up is None and arguments.down is None:
            traffic = client.status()["traffic"]
        else:
            traffic = client.set_bandwidth(up_bytes_per_second=arguments.up, down_bytes_per_second=arguments.down)
    _show(arguments, traffic, "\n".join(traffic_words(traffic)))
    return 0


def watch(arguments: argparse.Namespace) -> int:
    """Show the live view of the node until Ctrl-C or the end of the run, across restarts of the node."""
    from adloco_p2p.commands.console import open_view

    workdir: Path = arguments.workdir
    if holder_of(workdir) is None and (status_at_end := ended(workdir)) is not None:
        say(_last_words(workdir, status_at_end))
        return 0
    if _starting(workdir) is None:
        _client(workdir)  # fails at once where no node runs
    view = open_view(plain=arguments.plain, workdirs=[workdir])
    view.start()
    try:
        client, reported = _connect(workdir, view), ""
        while (found := follow(client, view)) != "finished":
            words = SILENT if found == "silent" and holder_of(workdir) is not None else ENDED
            if found == "ended" or words != reported:  # a node that does not answer is reported once, not at every check
                view.update(stamp(telemetry.Warning(key="control", message=words, active=True)))
            reported = words
            client = _reconnect(workdir, view)
    except KeyboardInterrupt:
        return 0
    finally:
        view.stop()
    return 0


def follow(client: ControlClient, view: View) -> Literal["finished", "ended", "silent"]:
    """Show the events of the node until it ends, and return whether its run finished, the node ended, or it sent nothing."""
    past: list[Stamped] = []
    is_past, is_finished, is_silent = True, False, True
    with client:
        try:
            for news in _with_silences(client.watch()):
                if isinstance(news, telemetry.Warning):
                    view.update(stamp(news))
                    continue
                events, are_past = news
                is_silent = False
                if are_past:
                    past += events
                    continue
                if is_past:
                    view.recall(past)
                    is_past, is_finished = False, _has_finished(past, is_finished)
                for event in events:
                    view.update(event)
                is_finished = _has_finished(events, is_finished)
        except SwarmError:
            pass  # killed, or too slow to send everything: the caller tries again
    if is_finished:
        return "finished"
    return "silent" if is_silent else "ended"


def _with_silences(batches: Iterator[Batch]) -> Iterator[Batch | telemetry.Warning]:
    """Yield the batches and, where none follows for QUIET_SECONDS, a warning, which ends with the next one. Raises SwarmError
    as the batches do."""
    quiet = telemetry.Warning(key="control", message=QUIET, active=True)
    reader = ThreadPoolExecutor(1)
    try:
        batch = reader.submit(next, batches, None).result()
        while batch is not None:
            yield batch
            following = reader.submit(next, batches, None)
            if not wait([following], QUIET_SECONDS).done:
                yield quiet
                wait([following])
                yield replace(quiet, active=False)
            batch = following.result()
    finally:
        reader.shutdown(wait=False)  # the reader ends with the connection


def _has_finished(events: Sequence[Stamped], before: bool) -> bool:
    """Return whether the run is complete after these events."""
    for event in (stamped.event for stamped in events):
        if isinstance(event, Started | Resumed | Finished):
            before = isinstance(event, Finished)
        elif isinstance(event, Stopped):  # it may have carried out the last plan and end without the model of the run
            before = before and event.is_finished
    return before


def _connect(workdir: Path, view: View) -> ControlClient:
    """Show the phase of the node until it can be asked. Raises SwarmError where it ends before that, or none runs."""
    shown = None
    while (phase := _starting(workdir)) is not None:
        if phase != shown:
            view.update(stamp(telemetry.Starting(phase=phase)))
            shown = phase
        time.sleep(RETRY_SECONDS)
    return _client(workdir)


def _reconnect(workdir: Path, view: View) -> ControlClient:
    while True:
        time.sleep(RETRY_SECONDS)
        try:
            return _connect(workdir, view)
        except SwarmError:
            continue
