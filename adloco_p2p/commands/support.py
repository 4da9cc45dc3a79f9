"""Verbs for when something went wrong."""

import argparse
import platform
import sys
import traceback
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from adloco_p2p.commands.console import say, say_exactly, say_json
from adloco_p2p.error_codes import ERROR_CODES, explained
from adloco_p2p.errors import AdlocoError, ConfigError, StorageError, brief

NEAR_CODES = 3
"""How many codes are offered in place of an unknown one."""


def version(arguments: argparse.Namespace) -> int:
    """Print the version as a report of a problem should state it."""
    from adloco_p2p.core.model.protocol import NEWEST, OLDEST, PROTOCOLS

    try:
        installed = metadata.version("adloco-peer")
    except metadata.PackageNotFoundError:
        installed = "(not installed: from a checkout)"
    if vars(arguments).get("json"):
        python = platform.python_version()
        say_json({"version": installed, "protocol": NEWEST, "oldest_protocol": OLDEST, "python": python})
    else:
        say(f"adloco-peer {installed}, {PROTOCOLS}, Python {platform.python_version()}")
    return 0


def completion(arguments: argparse.Namespace) -> int:
    """Print what a shell reads to complete the command line."""
    from argcomplete.shell_integration import shellcode

    say_exactly(shellcode(["adloco-peer"], shell=arguments.shell))
    return 0


def explain_error(arguments: argparse.Namespace) -> int:
    """Print cause and remedy of one error code, or of all."""
    code = arguments.code and f"E{arguments.code.upper().removeprefix('E')}"
    if code is not None and code not in ERROR_CODES:
        raise ConfigError(f"CODE {arguments.code}: not an error code; {_near_codes(code)}", code="E200")
    codes = [code] if code else list(ERROR_CODES)
    if arguments.json:
        say_json({"errors": [{"code": each, **asdict(ERROR_CODES[each])} for each in codes]})
    else:
        say("\n\n".join(explained(each) for each in codes))
    return 0


def _near_codes(code: str) -> str:
    digits = code.removeprefix("E")
    if not (digits.isascii() and digits.isdecimal()):
        return "one looks like E302; without a code, all of them are listed"
    near = sorted(ERROR_CODES, key=lambda known: abs(int(known.removeprefix("E")) - int(digits[:6])))[:NEAR_CODES]
    return f"the nearest are {', '.join(sorted(near))}; without a code, all of them are listed"


def bundle(arguments: argparse.Namespace) -> int:
    """Write a support bundle of a working directory."""
    from adloco_p2p.storage.support_bundle import is_of_a_node, write_bundle

    if not arguments.workdir.is_dir():
        raise ConfigError(f"--workdir {arguments.workdir}: there is no such directory", code="E204")
    if not is_of_a_node(arguments.workdir):
        raise ConfigError(f"--workdir {arguments.workdir}: no node ran in this directory", code="E204")
    path = write_bundle(arguments.workdir)
    if arguments.json:
        say_json({"path": str(path)})
    else:
        say(f"{path}: without keys, tokens and addresses; look at it before you pass it on")
    return 0


_ERRORS_OF_GPUS = (
    *("CUDA error", "CUDA driver error", "CUDA out of memory", "cuDNN error", "cuDNN Frontend error"),
    *("HIP error", "HIP out of memory", "MPS backend out of memory"),
)
"""How the messages of torch begin where a GPU, its driver or a library for it fails."""


def crash_code(error: Exception) -> str:
    """Return the code of an unexpected error: a fault of the program, unless a GPU's driver or library reports it, which
    happens at whichever call comes next. Torch raises some of these as plain RuntimeErrors, too."""
    is_gpus = isinstance(error, RuntimeError) and str(error).startswith(_ERRORS_OF_GPUS)
    return "E102" if is_gpus else AdlocoError.code


def describe_crash(error: BaseException, workdir: Path | None) -> str:
    """Describe an unexpected error to the user in one line. The traceback goes into a support bundle, or to stderr where no
    working directory can be written."""
    from adloco_p2p.storage.support_bundle import write_crash

    where = traceback.extract_tb(error.__traceback__)[-1]
    words = f"{type(error).__name__}: {brief(error)} ({Path(where.filename).name}:{where.lineno})"
    try:
        if workdir is not None:
            return f"{words}; support bundle: {write_crash(workdir, error)}"
    except StorageError as reason:
        words += f"; no support bundle: {reason}"
    traceback.print_exception(error, file=sys.stderr)
    return words
