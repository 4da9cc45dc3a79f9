"""Verbs that train."""

import argparse
import asyncio
import os
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
        if local.durable is not None and local.durable.plans[-1].is_last and local.durable.round >= run.work.rounds:
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
    config = f" {arguments.config}" if arguments.config else ""
    changes = "".join(f" --set {change}" for change in arguments.set)
    rounds = f" --rounds {arguments.rounds}" if arguments.rounds else ""
    return f"adloco-peer start{config} --workdir {arguments.workdir}{rounds}{changes}"


def view(*, plain: bool) -> View:
    """The live view in a terminal, one line per round elsewhere."""
    if plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        from adloco_p2p.views.plain import PlainView

        return PlainView(sys.stdout)

    from adloco_p2p.views.terminal import TerminalView

    return TerminalView()
