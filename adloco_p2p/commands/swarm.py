"""A whole swarm on one machine: real processes on loopback, one workdir each, one view over all of them.

The parent trains nothing: it starts the first peer, gives its address to the others, shows what their nodes report, passes
Ctrl-C on, and exports the model at the end. All peers are founders of the run, which begins when the last of them is there.
"""

import argparse
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from adloco_p2p.commands.console import Steps, as_called, call, open_view, say
from adloco_p2p.commands.control import ended
from adloco_p2p.commands.swarm_members import (
    LOOK_SECONDS,
    Interrupts,
    Member,
    Patience,
    Watch,
    check_first,
    end,
    spawn,
    wait_for_ending,
    wait_until_ready,
)
from adloco_p2p.commands.train import is_complete
from adloco_p2p.config.fields import differences
from adloco_p2p.config.load import load_run
from adloco_p2p.config.local_files import with_plain_paths
from adloco_p2p.config.run_config import MAX_FOUNDERS, RunConfig
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.runtime.node.event_sink import View
from adloco_p2p.storage.disk import reported
from adloco_p2p.storage.workdir import check_output, exported, read_run
from adloco_p2p.views import units

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
START_SECONDS = 600.0
"""How long each step of the first peer may take until it listens; a cold machine imports slowly."""
READY_SECONDS = 600.0
"""How long all peers together may stay at the same steps of their start, such as to read the text or to build the model."""
OWN_PEERS = ("admission.kind=open", "admission.probation_rounds=0")
"""Settings for peers that all belong to the user: none needs an invitation, or has to earn its vote."""
_ADDRESSES = re.compile(r"^initial peers: (.+)$", re.MULTILINE)


def swarm(arguments: argparse.Namespace) -> int:
    """Start the peers, watch them, and end with one model."""
    steps: Steps = arguments.steps
    steps.enter("reading the configuration")
    run = _checked_run(arguments)
    workdirs = [arguments.workdir / f"peer-{index}" for index in range(arguments.peers)]
    steps.enter("looking for peers of an earlier swarm")
    wait_for_ending(workdirs)
    if ended(workdirs[0]) is not None and is_complete(workdirs[0]):
        _check_same(run, workdirs[0])
        say(f"this run is complete: {run.work.length} are done")
        return _conclude(arguments, [], steps, finished=[workdirs[0]], is_stopped=False)
    threads = max(1, (os.cpu_count() or 1) // arguments.peers)
    machine = [f"num_threads={threads}", "allow_local_files=true"]  # the run is the user's own
    common = ["--plain", "--host-maddrs", LOOPBACK, "--peer-set", *machine, *arguments.peer_set]
    common += [] if arguments.no_wait else ["--gather"]
    config = [str(arguments.config)] if arguments.config is not None else []
    settings = ["--set", *OWN_PEERS, *arguments.set, *_length(arguments), *_founders(arguments, workdirs)]
    members: list[Member] = []
    with Interrupts(members) as interrupts:
        try:
            steps.enter("starting peer-0")
            start = ["start", *config, *settings, "--workdir", str(workdirs[0]), *common]
            members.append(spawn(start, workdirs[0], threads=threads))
            view = open_view(
                plain=arguments.plain,
                is_quiet=arguments.quiet,
                members=lambda: [member.row() for member in members],
                workdirs=workdirs,
            )
            addresses = _wait_for_addresses(members[0], steps, interrupts)
            for workdir in workdirs[1:] if addresses else []:
                join = ["join", "--initial-peers", *addresses, "--workdir", str(workdir), *common]
                members.append(spawn(join, workdir, threads=threads))
            steps.enter(None)
            peers, share = units.plural(arguments.peers, "peer"), units.plural(threads, "thread")
            say(f"{peers} of {run.name}, {share} each, in {arguments.workdir}")
            _follow(members, view, interrupts, is_waiting=not arguments.no_wait)
        finally:
            end(members)
    finished = [member.workdir for member in members if is_complete(member.workdir)]
    return _conclude(arguments, members, steps, finished=finished, is_stopped=interrupts.is_asked)


def _check_same(run: RunConfig, workdir: Path) -> None:
    """Raise ConfigError where the requested run is another one than the complete run in the directory, whose model would pass
    for that of the requested one."""
    done = read_run(workdir)
    if done is None or done.digest == (asked := _filled_in(run, done)).digest:
        return
    if done.work.length != run.work.length:
        raise ConfigError(
            f"{workdir.parent}: its run is complete with {done.work.length}, and {run.work.length} are asked for; {_ANEW}",
            code="E203",
        )
    listed = "\n".join(f"  {line}" for line in differences(done, asked))
    raise ConfigError(
        f"{workdir.parent}: its run is complete, and it is not the one asked for; {_ANEW} (here: in the directory, there: asked"
        f" for):\n{listed}",
        code="E203",
    )


_ANEW = "name a new --workdir, and to go on from this model export it and add --set model.pretrained=DIR"


def _filled_in(run: RunConfig, done: RunConfig) -> RunConfig:
    """Return the requested run with what `start` has filled in of the run that was done."""
    run = with_plain_paths(run)
    model = replace(run.model, digest=done.model.digest, files=done.model.files, parent=done.model.parent)
    return replace(
        run,
        protocol=done.protocol,
        author=done.author,
        founders=done.founders,
        packages=done.packages,
        model=model,
        tokenizer=replace(run.tokenizer, digest=done.tokenizer.digest),
        data=replace(run.data, digest=done.data.digest, files=done.data.files),
    )


def _checked_run(arguments: argparse.Namespace) -> RunConfig:
    """Return the run, so that mistakes show before any process starts. Raises ConfigError."""
    loaded = load_run(arguments.config, [*OWN_PEERS, *arguments.set, *_length(arguments)])
    if (kind := loaded.value.admission.kind) != "open":
        raise ConfigError(f"--set admission.kind={kind}: all peers of `swarm` are your own; leave it out", code="E201")
    if loaded.value.founders:
        raise ConfigError("--set founders: `swarm` fills it in with its own peers; leave it out", code="E201")
    if any(setting.replace(" ", "").startswith("control_address=off") for setting in arguments.peer_set):
        raise ConfigError("--peer-set control_address=off: `swarm` watches its peers by it; leave it out", code="E201")
    for notice in loaded.notices:
        say(notice)
    is_over = is_complete(arguments.workdir / "peer-0")
    if arguments.export is not None and not (is_over and _exported_round(arguments) is not None):
        check_output(arguments.export, option="--export")
    return loaded.value


def _exported_round(arguments: argparse.Namespace) -> int | None:
    """Return after how many rounds the model in the directory of `--export` was written; None where it is not of this run."""
    run, found = read_run(arguments.workdir / "peer-0"), exported(arguments.export)
    return found.round if run is not None and found is not None and found.run == run.digest else None


def _length(arguments: argparse.Namespace) -> list[str]:
    return [f"work.rounds={arguments.rounds}"] if arguments.rounds else []


def _founders(arguments: argparse.Namespace, workdirs: Sequence[Path]) -> list[str]:
    """Return the setting that makes all peers founders; for a run in these directories, the one with which it began."""
    from adloco_p2p.swarm.p2p.identity import Identity

    known = read_run(workdirs[0])
    if known is not None and (workdirs[0] / "journal.bin").exists():
        founders = known.founders
        if len(founders) >= len(workdirs) and not arguments.no_wait:
            raise ConfigError(
                f"--peers {len(workdirs)}: the run in {arguments.workdir} was begun with {len(founders) + 1}; give as many, or"
                " --no-wait to go on without the others",
                code="E200",
            )
    elif arguments.no_wait:
        founders = ()
    else:
        for workdir in workdirs[1:]:
            with reported(workdir):
                workdir.mkdir(parents=True, exist_ok=True)
        others = workdirs[1 : MAX_FOUNDERS + 1]
        founders = tuple(Identity.load_or_create(workdir / "identity.key").peer_id for workdir in others)
    return [f"founders=[{', '.join(founders)}]"] if founders else []


def _wait_for_addresses(first: Member, steps: Steps, interrupts: Interrupts) -> list[str]:
    """Return the addresses that the first peer prints for others; empty where the user stops it. Raises SwarmError."""
    patience = Patience(START_SECONDS)
    while not patience.is_over(first.phase) and not interrupts.is_asked:
        match = _ADDRESSES.search(first.log.read_text(errors="replace"))
        if match:
            return match[1].split()
        if not first.is_running:
            raise SwarmError(f"the first peer did not start: {first.last_words()}", code="E312")
        steps.enter(f"peer-0: {first.phase or 'starting'}")
        time.sleep(LOOK_SECONDS)
    if interrupts.is_asked:
        return []
    raise SwarmError(
        f"the first peer does not listen after {START_SECONDS:.0f} s at \u201c{first.phase}\u201d; see {first.log}", code="E312"
    )


def _follow(members: list[Member], view: View, interrupts: Interrupts, *, is_waiting: bool) -> None:
    """Show the first peer's view, and a line for each of the others, until every process has ended."""
    watch = Watch(view)
    view.start()
    try:
        for member in members:
            watch.add(member, is_shown=member is members[0])
        if is_waiting:
            wait_until_ready(members, seconds=READY_SECONDS, interrupts=interrupts)
        while any(member.is_running for member in members):
            check_first(members)
            time.sleep(LOOK_SECONDS)
        watch.finish()
    finally:
        view.stop()


def _first_prompt(run: RunConfig | None) -> str:
    """Return a beginning of the kind of text that the model has learned."""
    if run is not None and (run.data.messages_column is not None or run.data.prompt_column is not None):
        return "What can you do?"
    return "def " if run is None or run.data.source == "python" else "The "


def _conclude(
    arguments: argparse.Namespace, members: Sequence[Member], steps: Steps, *, finished: Sequence[Path], is_stopped: bool
) -> int:
    """Describe the end of the run, and what can be done next. Returns an exit code other than 0 where a peer failed, or never
    came.

    `finished`: directories of peers that have the whole run.
    """
    failed = [member for member in members if member.process.returncode != 0] if not is_stopped else []
    for member in failed:
        say(f"{member.name} ended with exit code {member.process.returncode}: {member.last_words()}")
        if finished and not (member.workdir / "run.json").exists():
            say(f"{member.name} never joined; where the run was over before that, give it more --rounds")
    code = 3 if failed else 0
    if not finished:
        ended = "saved" if all(member.process.returncode == 0 for member in members) else "stopped"
        say(f"{ended}; continue with: {as_called(arguments.command_line)}")
        return code
    first = finished[0]
    nexts = [
        call("generate", "--workdir", first, "--prompt", _first_prompt(read_run(first))),
        call("report", "--workdir", first, "--output", arguments.workdir / "report"),
    ]
    if arguments.export is not None:
        if (written := _exported_round(arguments)) is not None:
            say(f"{arguments.export}: the model after round {written} was written before, and stays as it is")
        else:
            from adloco_p2p.commands.trained_model import export_words, write_export

            steps.enter("writing the model")
            record = write_export(first, arguments.export, instance=None)
            steps.enter(None)
            say(export_words(record))
        nexts.append(call("dashboard", "--workdir", first))
    else:
        nexts.append(call("export", "--workdir", first, "--output", arguments.workdir / "model"))
    say("\n".join(["done. Try next:", *(f"  {line}" for line in nexts)]))
    return code
