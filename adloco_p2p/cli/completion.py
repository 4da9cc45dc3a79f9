"""Completion in the shell, by argcomplete: the parser gives verbs and options, and this module the values of options."""

import argparse

import argcomplete
from argcomplete.completers import DirectoriesCompleter, FilesCompleter, SuppressCompleter

from adloco_p2p.cli.parser import Parser
from adloco_p2p.cli.shared import path


def complete(parser: Parser) -> None:
    """Answer the shell's request, which argcomplete's environment variables contain, and end the process."""
    _offer(parser)
    argcomplete.autocomplete(parser, default_completer=SuppressCompleter())


def _offer(parser: Parser) -> None:
    """Attach the possible values to every argument; numbers and texts have none."""
    for verb in parser.verbs.values():
        _offer(verb)
    for action in parser._actions:
        if (offers := _offers(action)) is not None:
            action.completer = offers  # type: ignore[attr-defined]  # argcomplete reads it there


def _offers(action: argparse.Action) -> object:
    match action.dest:
        case "config":
            return _configurations
        case "set":
            return _run_settings
        case "peer_set":
            return _peer_settings
    if action.type is path:
        return DirectoriesCompleter() if action.metavar == "DIR" else FilesCompleter()
    return None


def _configurations(prefix: str, **_: object) -> list[str]:
    """Return the shipped configurations, and files."""
    from adloco_p2p.config.documents import shipped

    files = FilesCompleter(("yaml", "yml", "toml"))(prefix)
    return [*(name for name in shipped() if name.startswith(prefix)), *files]


def _run_settings(**_: object) -> list[str]:
    from adloco_p2p.config.fields import settings_of
    from adloco_p2p.config.run_config import RunConfig

    return [f"{key}=" for key in settings_of(RunConfig)]


def _peer_settings(**_: object) -> list[str]:
    from adloco_p2p.config.fields import settings_of
    from adloco_p2p.config.peer_config import PeerConfig

    return [f"{key}=" for key in settings_of(PeerConfig)]
