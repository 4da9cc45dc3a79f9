"""Verbs for when something went wrong."""

import argparse
import sys
import traceback
from pathlib import Path

from adloco_p2p.commands.saying import say
from adloco_p2p.error_codes import ERROR_CODES, explained
from adloco_p2p.errors import ConfigError, StorageError


def explain_error(arguments: argparse.Namespace) -> int:
    """Cause and remedy of one error code, or of all."""
    code = arguments.code and arguments.code.upper()
    if code is not None and code not in ERROR_CODES:
        raise ConfigError(f"CODE {arguments.code}: not an error code; known are {', '.join(ERROR_CODES)}", code="E200")
    say("\n\n".join(explained(each) for each in ([code] if code else ERROR_CODES)))
    return 0


def bundle(arguments: argparse.Namespace) -> int:
    """Write a support bundle of a working directory."""
    from adloco_p2p.storage.support_bundle import write_bundle

    if not arguments.workdir.is_dir():
        raise ConfigError(f"--workdir {arguments.workdir}: there is no such directory", code="E204")
    say(f"{write_bundle(arguments.workdir)}: without keys, tokens and addresses; look at it before you pass it on")
    return 0


def describe_crash(error: BaseException, workdir: Path | None) -> str:
    """One line for the user about an error that nobody expected. The traceback goes into a support bundle; where there is
    no working directory, or it cannot be written, to stderr."""
    from adloco_p2p.storage.support_bundle import write_crash

    where = traceback.extract_tb(error.__traceback__)[-1]
    words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({Path(where.filename).name}:{where.lineno})"
    try:
        if workdir is not None:
            return f"{words}; support bundle: {write_crash(workdir, error)}"
    except StorageError as reason:
        words += f"; no support bundle: {reason}"
    traceback.print_exception(error, file=sys.stderr)
    return words
