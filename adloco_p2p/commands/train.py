"""Verbs that train."""

import argparse
import asyncio
import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adloco_p2p.commands import lifeline
from adloco_p2p.commands.console import as_called, call, open_view, say
from adloco_p2p.config.load import load_peer, load_run
from adloco_p2p.config.local_files import check_sources, with_plain_paths
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.plugins import check_packages, packages_of
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.control.endpoint import parse_listen
from adloco_p2p.core.model.effects import Stop
from adloco_p2p.errors import ConfigError
from adloco_p2p.runtime.adapters.imports import collecting_nothing
from adloco_p2p.storage.admission_files import read_address

if TYPE_CHECKING:
    from adloco_p2p.commands.trained_model import Saved
    from adloco_p2p.runtime.adapters.embedding import Embedding
    from adloco_p2p.storage.workdir import Workdir


SWARM_SECONDS = 3600.0
"""How long a peer of `swarm` looks for the first one, which may still read a long text or build a large model. The verb ends it
when the first peer ends, or makes no progress."""


def start(arguments: argparse.Namespace) -> int:
    """Create the run in the directory and train, or go on with it."""
    run = _run_config(arguments)
    config = peer_config_of(arguments)
    with closing(_open_workdir(arguments, config)) as workdir:
        with collecting_nothing():
            from adloco_p2p.swarm.p2p.identity import Identity

        run = replace(_identified(run), author=Identity.load_or_create(workdir.identity_path).peer_id)
        run = workdir.as_begun(run)
        _check_author(workdir, run)
        _check_heldout(run, is_new=workdir.run is None or workdir.run.digest != run.digest)
        workdir.adopt(run)  # before anything slow, so that a directory of another run is refused at once
        _keep_command(workdir, arguments)
        if is_complete(arguments.workdir):
            return _say_complete(arguments.workdir, f": {run.work.length} are done")
        workdir.keep_to(is_offline=arguments.offline)
        if arguments.offline:
            with collecting_nothing():
                from adloco_p2p.runtime.offline_node import train_alone
                from adloco_p2p.runtime.services import open_local

            local = open_local(_embedding(arguments, workdir, config), run)
            try:
                stop = asyncio.run(train_alone(local))
            finally:
                local.close()
        else:
            with collecting_nothing():
                from adloco_p2p.runtime.network_node import start_run

            embedding = _embedding(arguments, workdir, config)
            stop = asyncio.run(start_run(embedding, run, initial_peers=arguments.initial_peers))
    return _ended(stop, arguments)


def _check_author(workdir: "Workdir", run: RunConfig) -> None:
    """Raise ConfigError where the directory holds this run as that of another author; `start` would make a new one."""
    held = workdir.run
    if held is None or not workdir.has_history or held.author == run.author or replace(held, author=run.author) != run:
        return
    raise ConfigError(
        f"--workdir {workdir.path}: another peer began the run in it, {held.author}; this one is {run.author}. Where this peer"
        f" joined it, go on with `{call('join', '--workdir', workdir.path)}`; where identity.key was lost or replaced, restore"
        " it from a copy",
        code="E203",
    )


def _check_heldout(run: RunConfig, *, is_new: bool) -> None:
    """Refuse a new run that is evaluated on what it is trained on; one that exists goes on, and its user reads it. Raises
    ConfigError."""
    if run.data.heldout_path is None:
        return
    from adloco_p2p.data.source import heldout_overlap

    problem = heldout_overlap(run.data)
    if problem is not None and is_new:
        raise ConfigError(problem, code="E207")
    if problem is not None:
        say(f"warning: held-out losses of this run say little; {problem}")


def _keep_command(workdir: "Workdir", arguments: argparse.Namespace) -> None:
    """Keep the command for the next time, without an invitation or an address, which may be stale by then. The peer of a swarm
    keeps none, since only `swarm` starts it."""
    if getattr(arguments, "lifeline", None) is None:
        workdir.keep_command(shlex.join(_without_links(shlex.split(arguments.command_line))))


def _identified(run: RunConfig) -> RunConfig:
    """Return the run with the digests of its inputs, so that every peer can check that it has the same ones."""
    run = with_plain_paths(run)
    check_sources(run)
    if not run.packages:
        run = replace(run, packages=packages_of(run))
    check_packages(run)
    if run.tokenizer.source != "bytes" and not run.tokenizer.digest:
        from adloco_p2p.data.tokenizer import tokenizer_digest

        run = replace(run, tokenizer=replace(run.tokenizer, digest=tokenizer_digest(run.tokenizer)))
    if run.model.pretrained is not None and not run.model.digest:
        from adloco_p2p.storage.workdir import exported
        from adloco_p2p.training.pretrained import weights_digest

        digest, parent = weights_digest(run.model), exported(Path(run.model.pretrained))
        files = ""
        if run.model.share:
            from adloco_p2p.runtime.adapters.shared_inputs import model_root

            if not Path(run.model.pretrained or "").is_dir():
                raise ConfigError(
                    f"model.share: {run.model.pretrained} is no directory, and peers get it from the hub", code="E209"
                )
            files = model_root(Path(run.model.pretrained or ""))
        run = replace(
            run, model=replace(run.model, digest=digest, parent=parent.run if parent is not None else "", files=files)
        )
    if run.data.source != "hub" and not run.data.digest:
        from adloco_p2p.data.source import files_digest

        run = replace(run, data=replace(run.data, digest=files_digest(run.data)))
    if run.data.share and not run.data.files:
        from adloco_p2p.runtime.adapters.shared_inputs import text_root

        run = replace(run, data=replace(run.data, files=text_root(run.data)))
    return run


def join(arguments: argparse.Namespace) -> int:
    """Find a run through its peers and take part."""
    return _join(arguments, peer_config_of(arguments))


def keep(arguments: argparse.Namespace) -> int:
    """Take part as a keeper, which trains nothing: it passes over the held-out rows at the end one by one."""
    arguments.peer_set = [*arguments.peer_set, "keeper=true", "max_micro_batch=1"]
    return _join(arguments, peer_config_of(arguments))


def _join(arguments: argparse.Namespace, config: PeerConfig) -> int:
    if arguments.initial_peers:
        _check_run(arguments)
    elif is_complete(arguments.workdir):  # whether or not an address of it is known
        return _say_complete(arguments.workdir)
    else:
        arguments.initial_peers = [_known_address(arguments.workdir)]
    with closing(_open_workdir(arguments, config)) as workdir:
        if is_complete(arguments.workdir):
            return _say_complete(arguments.workdir)
        workdir.keep_to(is_offline=False)
        _keep_command(workdir, arguments)
        with collecting_nothing():
            from adloco_p2p.runtime.network_node import join_run
            from adloco_p2p.swarm.discovery.join import DISCOVERY_SECONDS, JoinTarget

        target = JoinTarget(
            initial_peers=tuple(arguments.initial_peers),
            run=arguments.run,
            patience_seconds=DISCOVERY_SECONDS if getattr(arguments, "lifeline", None) is None else SWARM_SECONDS,
        )
        stop = asyncio.run(join_run(_embedding(arguments, workdir, config), target))
    return _ended(stop, arguments)


def _check_run(arguments: argparse.Namespace) -> None:
    """Raise ConfigError where a link and --run name two runs, and where the directory holds another run than they name."""
    from adloco_p2p.storage.workdir import read_run
    from adloco_p2p.swarm.discovery.join_link import check_held_run, split_initial_peers, wanted_run

    linked, _ = split_initial_peers(arguments.initial_peers)
    held, wanted = read_run(arguments.workdir), wanted_run(linked, arguments.run)
    if held is not None:
        check_held_run(arguments.workdir, held.digest, wanted=wanted)


def _known_address(workdir: Path) -> str:
    """Return the link to the run in which the directory has taken part. Raises ConfigError."""
    link = read_address(workdir)
    if not link:
        raise ConfigError(
            f"--initial-peers is needed: {workdir} holds no run to go on with; give the link that its author gave you",
            code="E200",
        )
    return link


def bootstrap(arguments: argparse.Namespace) -> int:
    """Help others to find each other, and relay; train nothing."""
    config = peer_config_of(arguments)
    with closing(_open_workdir(arguments, config)) as workdir:
        from adloco_p2p.runtime.bootstrap_node import serve

        asyncio.run(serve(workdir=workdir, config=config, initial_peers=tuple(arguments.initial_peers), say=say))
        arguments.steps.enter(None)  # the shell's prompt would follow the line that moves
    return 0


def _open_workdir(arguments: argparse.Namespace, config: PeerConfig) -> "Workdir":
    """Open the working directory. Problems of addresses and the directory show here, before torch is imported, which takes
    seconds."""
    with collecting_nothing():
        from adloco_p2p.storage.workdir import ENDING, Workdir
        from adloco_p2p.swarm.discovery.join_link import split_initial_peers
        from adloco_p2p.swarm.p2p.listening import check_config, wait_for_ports
        from adloco_p2p.trackers import check_installed

    split_initial_peers(arguments.initial_peers)
    check_config(config)
    check_installed(config.trackers)
    workdir = Workdir.open(arguments.workdir)
    if getattr(arguments, "lifeline", None) is not None:
        lifeline.hold(arguments.lifeline, on_end=lambda: workdir.enter(ENDING))
    workdir.on_phase = arguments.steps.enter
    if not (config.client_mode or getattr(arguments, "offline", False)):
        wait_for_ports(config.host_maddrs)
    workdir.enter("importing libraries")
    return workdir


def _embedding(arguments: argparse.Namespace, workdir: "Workdir", config: PeerConfig) -> "Embedding":
    with collecting_nothing():
        from adloco_p2p.runtime.adapters.embedding import Embedding

    view = open_view(plain=arguments.plain, is_quiet=arguments.quiet, workdirs=[arguments.workdir])
    return Embedding(workdir=workdir, config=config, view=view, say=say, should_gather=arguments.gather)


def _ended(stop: Stop, arguments: argparse.Namespace) -> int:
    if stop.is_finished and _saved(arguments.workdir) is not None:
        say(f"done. Write the model: {call('export', '--workdir', arguments.workdir, '--output', 'DIR')}")
    elif stop.is_finished:
        say("done. This peer came when the run had ended and holds no model of it; peers that trained, or kept, can export it")
    else:
        say(f"saved; continue with: {as_called(shortest(arguments.command_line, arguments.workdir))}")
    return 0


def shortest(command: str, workdir: Path) -> str:
    """Return the command that goes on, without the long link where the directory holds it."""
    words = shlex.split(command)
    return shlex.join(_without_links(words) if leads_to_others(workdir) else words)


def leads_to_others(workdir: Path) -> bool:
    """Return whether the directory's link has an address of another peer."""
    from adloco_p2p.swarm.discovery.join_link import split_initial_peers
    from adloco_p2p.swarm.p2p.identity import Identity

    link, key = read_address(workdir), workdir / "identity.key"
    if not link or not key.exists():
        return bool(link)
    me = Identity.load_or_create(key).peer_id
    return any(address.peer != me for address in split_initial_peers([link])[1])


def _without_links(words: Sequence[str]) -> list[str]:
    """Return the words without any `--initial-peers A B`, `--initial-peers=A` or short form of these."""
    kept, is_link = [], False
    for word in words:
        if word.startswith("-"):
            name = word.partition("=")[0]
            is_link = len(name) > 2 and "--initial-peers".startswith(name)
        if not is_link:
            kept.append(word)
    return kept


def _say_complete(workdir: Path, work: str = "") -> int:
    say(
        f"this run is complete{work}. A new run starts from its model with --set model.pretrained=DIR, after this command:"
        f" {call('export', '--workdir', workdir, '--output', 'DIR')}"
    )
    return 0


def is_complete(workdir: Path) -> bool:
    """Return whether the directory has the model of its run: that of the history with which its ledger ends, if it has one."""
    saved = _saved(workdir)
    if saved is None or not saved.durable.is_finished:
        return False
    from adloco_p2p.core.model import canonical
    from adloco_p2p.errors import StorageError
    from adloco_p2p.runtime.adapters.network_journal import newest_plan
    from adloco_p2p.storage.workdir import JOURNAL

    journal = workdir / JOURNAL
    if not journal.exists():
        return True
    try:
        newest = newest_plan(journal)
    except StorageError:
        return True  # the model does not depend on the journal
    last = saved.durable.plans[-1]
    return newest in (None, canonical.digest(last), last.parent)  # a damaged last entry is cut off


def _saved(workdir: Path) -> "Saved | None":
    """Return the last checkpoint; None where there is none, or none that can be used, which opening it for training reports."""
    with collecting_nothing():
        from adloco_p2p.commands.trained_model import open_saved
    from adloco_p2p.errors import ConfigError, StorageError

    try:
        return open_saved(workdir)
    except (ConfigError, StorageError):
        return None


def peer_config_of(arguments: argparse.Namespace) -> PeerConfig:
    """Return the machine's settings; flags override the file."""
    overrides = list(arguments.peer_set)
    for flag in ("host_maddrs", "announce_maddrs", "device"):
        if getattr(arguments, flag, None):
            overrides.append(f"{flag}=[{', '.join(getattr(arguments, flag))}]")
    if getattr(arguments, "max_instances", None):
        overrides.append(f"max_instances={arguments.max_instances}")
    config = load_peer(arguments.peer_config, overrides).value
    parse_listen(config.control_address)  # a wrong one is refused before anything slow
    return config


def _run_config(arguments: argparse.Namespace) -> RunConfig:
    """Return the requested run, or the run that lies in the directory where none is requested."""
    if arguments.config is None and not arguments.set and arguments.rounds is None:
        from adloco_p2p.storage.workdir import read_run

        if (held := read_run(arguments.workdir)) is not None:
            return held
    overrides = list(arguments.set)
    if arguments.rounds is not None:
        overrides.append(f"work.rounds={arguments.rounds}")
    loaded = load_run(arguments.config, overrides)
    for notice in loaded.notices:
        say(notice)
    return loaded.value
