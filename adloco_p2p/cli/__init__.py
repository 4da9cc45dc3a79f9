"""The command line: its verbs and their arguments. The work is done in `commands/`.

Exit codes and error codes are in `error_codes.py`.
"""

import argparse
import contextlib
import importlib
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

from adloco_p2p.cli import peer_verbs, run_verbs
from adloco_p2p.cli.parser import Parser, error_words
from adloco_p2p.commands.console import Steps, lossy_output, remark, say_json
from adloco_p2p.commands.hub import settle as settle_hub
from adloco_p2p.error_codes import ERROR_CODES
from adloco_p2p.errors import AdlocoError, ConfigError, DeviceError, RemoteProtocolError, ShardLost, StorageError, SwarmError

EXIT_BROKEN_PIPE = 141
"""The exit code where the reader of the output is gone, which a shell reports for a process that SIGPIPE ended."""
DESCRIPTION = "Train a language model together, without a server: a volunteer node for AdLoCo runs."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code. Errors that have a cause and a remedy are printed without a traceback."""
    words = sys.argv[1:] if argv is None else argv
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        from adloco_p2p.cli.completion import complete

        complete(parser)
    arguments = parser.parse_args(words)
    arguments.command_line = shlex.join(["adloco-peer", *words])
    with lossy_output() if _is_node(arguments) else contextlib.nullcontext():
        return _run(arguments, words)


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    arguments.steps = _first_step(arguments)
    handler = _AboveStep()
    handler.setFormatter(WithFields("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if arguments.verbose:
        logging.getLogger("adloco_p2p").setLevel(logging.INFO)
    settle_hub(is_offline=vars(arguments).get("offline", False))
    module, function = arguments.verb.split(":")
    try:
        _check_text(words)
        return int(getattr(importlib.import_module(f"adloco_p2p.commands.{module}"), function)(arguments))
    except (ConfigError, SwarmError, StorageError, DeviceError, RemoteProtocolError, ShardLost) as error:
        problems = error.problems if isinstance(error, ConfigError) else (str(error),)
        _report(error.code, problems, arguments)
        return error.exit_code
    except KeyboardInterrupt:
        return _stopped()
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except Exception as error:  # a fault of ours: every error with a cause and a remedy is caught above
        if isinstance(error.__cause__, KeyboardInterrupt):  # extensions turn a Ctrl-C during their import into this
            return _stopped()
        if _lacks_memory(error):
            _report("E502", ("main memory ran out, or what a limit leaves of it (`ulimit -v`)",), arguments)
            return DeviceError.exit_code
        from adloco_p2p.commands.support import crash_code, describe_crash

        crash = describe_crash(error, vars(arguments).get("workdir"))
        _report(crash_code(error), (crash,), arguments)
        return AdlocoError.exit_code


def _check_text(words: Sequence[str]) -> None:
    """Raise ConfigError for a word that is not text here, such as a path in another encoding. It could neither be kept in a
    file nor be given to the libraries that write the model."""
    for word in words:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            raise ConfigError(
                f"{word}: has bytes that are not text in the encoding {sys.getfilesystemencoding()}; choose another name, or"
                " set LC_ALL=C.UTF-8 for a name in UTF-8",
                code="E200",
            ) from None


def _lacks_memory(error: Exception) -> bool:
    """Return whether the machine lacks memory, rather than a GPU. Torch raises a plain RuntimeError for that."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))


FIRST_STEPS = {
    "train:start": "reading the settings",
    "train:join": "reading the settings",
    "train:keep": "reading the settings",
    "train:bootstrap": "reading the settings",
    "swarm:swarm": "importing libraries",
    "doctor:doctor": "checking this machine",
    "trained_model:export": "loading the model",
    "evaluation:evaluate": "loading the model",
    "import_weights:import_weights": "reading the weights",
    "trained_model:generate": "loading the model",
    "inspect:report": "drawing the run",
    "plan:plan": "computing the need",
    "observe:dashboard": "importing libraries",
    "observe:leaderboard": "checking the ledger",
    "audit:show": "reading the ledger",
    "audit:explain": "reading the ledger",
    "audit:simulate": "simulating",
    "control:status": "asking the node",
    "control:watch": "asking the node",
    "control:command": "asking the node",
    "control:bandwidth": "asking the node",
    "admission:invite": "reading the ledger",
    "admission:members": "reading the ledger",
    "admission:ban": "reading the ledger",
    "admission:unban": "reading the ledger",
    "signing:signers": "reading the ledger",
    "signing:command": "reading the ledger",
    "inspect:show_config": "reading the settings",
    "observe:replay": "reading the events",
    "support:bundle": "reading the run",
}
"""The first step of each verb that takes longer than a moment."""


def _is_node(arguments: argparse.Namespace) -> bool:
    return str(arguments.verb).startswith(("train:", "swarm:"))


def _first_step(arguments: argparse.Namespace) -> Steps:
    """Show the first step before any slow import."""
    is_node = _is_node(arguments)
    steps = Steps(sys.stdout if is_node else sys.stderr, is_quiet=arguments.quiet, is_log=is_node)
    steps.enter(FIRST_STEPS.get(arguments.verb))
    return steps


def _stopped() -> int:
    """Report a stop before training began, or in a verb that only reads, where nothing is lost."""
    remark("adloco-peer: stopped")
    return 130


def _report(code: str, problems: Sequence[str], arguments: argparse.Namespace) -> None:
    """Print every problem with its code, then the cause and the remedy of the code; for a machine as one JSON document on the
    standard output."""
    given = vars(arguments)
    # A verb that writes elsewhere may have failed there, as on a full disk: only the message knows which directory it was.
    workdir = given.get("workdir") if given.get("output") is None else None
    if given.get("json", False):
        entry = ERROR_CODES[code]
        error = {"code": code, "problems": list(problems), "cause": entry.cause, "remedy": entry.remedy_in(workdir)}
        with contextlib.suppress(StorageError):  # it may be the output that failed
            say_json({"error": error})
    remark(error_words(code, problems, workdir=workdir))


class _AboveStep(logging.StreamHandler[TextIO]):
    """Writes log lines above the line of the step that is under way."""

    def emit(self, record: logging.LogRecord) -> None:
        from adloco_p2p.commands.console import step_aside

        with step_aside():
            super().emit(record)


class WithFields(logging.Formatter):
    """Also shows the `extra` fields of a log call, which say where and why. A record may quote what others sent, so only its
    first line begins at the margin: no line end in a quotation begins a record of its own."""

    _OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        from adloco_p2p.views.units import printable
        from adloco_p2p.views.wrapping import fitted

        fields = [f"{name} {value}" for name, value in vars(record).items() if name not in self._OWN]
        text = printable(", ".join([super().format(record), *fields])).replace("\n", "\n  ")
        return fitted(text, sys.stderr)


class _Version(argparse.Action):
    """Prints the version, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        parser.exit(main(["version"]))


def make_parser() -> Parser:
    """Return the parser of the whole command line, with its verbs by task."""
    parser = Parser(prog="adloco-peer", description=DESCRIPTION)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    parser.verbs = verbs.choices
    parser.add_task("take part in a run, or begin one", verbs, peer_verbs.taking_part, peer_verbs.helping, peer_verbs.doctor)
    parser.add_task("the node that runs in a directory", verbs, peer_verbs.control)
    parser.add_task("your run: its peers, and commands to all of them", verbs, peer_verbs.admission)
    parser.add_task("the trained model", verbs, run_verbs.model)
    parser.add_task("what happens in a run, and why", verbs, run_verbs.views, run_verbs.ledger)
    parser.add_task("before a run", verbs, run_verbs.planning, run_verbs.config_verbs, run_verbs.simulate)
    parser.add_task("help", verbs, run_verbs.support)
    _verbosity(parser)
    return parser


def _verbosity(parser: Parser) -> None:
    """Add the options that decide how much every verb prints."""
    for verb in parser.verbs.values():
        _verbosity(verb)
    if not parser.verbs:
        how_much = parser.add_mutually_exclusive_group()
        how_much.add_argument("-v", "--verbose", action="store_true", help="also details")
        how_much.add_argument("-q", "--quiet", action="store_true", help="only results, warnings and errors")
