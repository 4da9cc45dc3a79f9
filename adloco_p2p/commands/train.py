"""Verbs that train."""

import argparse
import asyncio
import os
import shlex
import sys

from adloco_p2p.commands.saying import say
from adloco_p2p.config.load import load_peer, load_run
from adloco_p2p.config.run import RunConfig
from adloco_p2p.runtime.sink import View


def start(arguments: argparse.Namespace) -> int:
    """Create the run in the directory and train, or go on with it."""
    run = _run_config(arguments)
    peer_config = load_peer(arguments.peer_config, arguments.peer_set).value
    from adloco_p2p.runtime.alone import train_alone
    from adloco_p2p.runtime.compose import open_local
    from adloco_p2p.storage.workdir import Workdir

    workdir = Workdir.open(arguments.workdir)
    workdir.adopt(run)  # before anything slow: a directory of another run is refused at once
    local = open_local(workdir=workdir, run=run, peer_config=peer_config, view=view(plain=arguments.plain), say=say)
    try:
        if local.durable is not None and local.durable.is_finished:
            say(f"this run is complete: {run.work.rounds} rounds are done")
        else:
            stop = asyncio.run(train_alone(local))
            if not stop.is_finished:
                say(f"saved; go on with the same command: {_again(arguments)}")
                return 0
    finally:
        local.close()
    say(f"done. Write the model: adloco-peer export --workdir {arguments.workdir} --output DIR")
    return 0


def _run_config(arguments: argparse.Namespace) -> RunConfig:
    overrides = list(arguments.set)
    if arguments.rounds is not None:
        overrides.append(f"work.rounds={arguments.rounds}")
    return load_run(arguments.config, overrides).value


def _again(arguments: argparse.Namespace) -> str:
    """The command that goes on with the run, ready to be pasted."""
    words = ["adloco-peer", "start"]
    words += [str(arguments.config)] if arguments.config else []
    words += ["--workdir", str(arguments.workdir)]
    words += ["--rounds", str(arguments.rounds)] if arguments.rounds else []
    words += ["--set", *arguments.set] if arguments.set else []
    words += ["--peer-config", str(arguments.peer_config)] if arguments.peer_config else []
    words += ["--peer-set", *arguments.peer_set] if arguments.peer_set else []
    words += ["--plain"] if arguments.plain else []
    return shlex.join(words)


def view(*, plain: bool) -> View:
    """The live view in a terminal, one line per round elsewhere."""
    if plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        from adloco_p2p.views.plain import PlainView

        return PlainView(sys.stdout)

    from adloco_p2p.views.terminal import TerminalView

    return TerminalView()
