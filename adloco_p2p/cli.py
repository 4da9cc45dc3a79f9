"""The command line: which verbs there are and what they take. The work is done in `commands/`.

Exit codes and error codes are in `error_codes.py`.
"""

import argparse
import difflib
import importlib
import logging
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, assert_never

from adloco_p2p.commands.console import Steps, make_way, say_json
from adloco_p2p.commands.hub import settle as settle_hub
from adloco_p2p.core.model.commands import COMMANDS, Command
from adloco_p2p.error_codes import ERROR_CODES
from adloco_p2p.errors import AdlocoError, ConfigError, DeviceError, RemoteProtocolError, StorageError, SwarmError

EXIT_BROKEN_PIPE = 141
"""The reader of the output is gone; the code that a shell reports of a process that SIGPIPE ended."""
DESCRIPTION = "Train a language model together, without a server: a volunteer node for AdLoCo runs."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Returns the exit code; errors that have a cause and a remedy are printed without a traceback."""
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args(words)
    arguments.command_line = shlex.join(["adloco-peer", *words])
    arguments.steps = _first_step(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(_WithFields("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if arguments.verbose:
        logging.getLogger("adloco_p2p").setLevel(logging.INFO)
    settle_hub(is_offline=vars(arguments).get("offline", False))
    module, function = arguments.verb.split(":")
    try:
        return int(getattr(importlib.import_module(f"adloco_p2p.commands.{module}"), function)(arguments))
    except (ConfigError, SwarmError, StorageError, DeviceError, RemoteProtocolError) as error:
        problems = error.problems if isinstance(error, ConfigError) else (str(error),)
        _tell(error.code, problems, as_json=vars(arguments).get("json", False))
        return error.exit_code
    except KeyboardInterrupt:
        return _stopped()
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except Exception as error:  # ours: everything that has a cause and a remedy is above
        if isinstance(error.__cause__, KeyboardInterrupt):  # so extensions call Ctrl-C that comes while they are loaded
            return _stopped()
        from adloco_p2p.commands.support import describe_crash

        words = describe_crash(error, vars(arguments).get("workdir"))
        _tell(AdlocoError.code, (words,), as_json=vars(arguments).get("json", False))
        return AdlocoError.exit_code


FIRST_STEPS = {
    "train:start": "reading the settings",
    "train:join": "reading the settings",
    "train:keep": "reading the settings",
    "train:bootstrap": "reading the settings",
    "swarm:swarm": "reading the settings",
    "doctor:doctor": "checking this machine",
    "trained_model:export": "loading the model",
    "evaluation:evaluate": "loading the model",
    "import_weights:import_weights": "reading the weights",
    "trained_model:generate": "loading the model",
    "inspect:report": "drawing the run",
    "inspect:plan": "computing the need",
    "observe:dashboard": "looking for the run",
    "observe:leaderboard": "checking the ledger",
    "audit:show": "reading the ledger",
    "audit:explain": "reading the ledger",
    "audit:simulate": "simulating",
}
"""What the verbs that take longer than a moment do first."""


def _first_step(arguments: argparse.Namespace) -> Steps:
    """Something to read before anything is imported that takes time."""
    is_training = arguments.verb.startswith(("train:", "swarm:"))
    steps = Steps(sys.stdout if is_training else sys.stderr, is_quiet=arguments.quiet, is_log=is_training)
    steps.enter(FIRST_STEPS.get(arguments.verb))
    return steps


def _stopped() -> int:
    """Before training began, or in a verb that only reads: nothing is lost."""
    make_way()
    print("adloco-peer: stopped", file=sys.stderr)  # noqa: T201
    return 130


def _tell(code: str, problems: Sequence[str], *, as_json: bool) -> None:
    """Every problem with its code, then the cause and the remedy of the code; as one JSON document on the standard output
    where a machine reads it."""
    make_way()
    if as_json:
        entry = ERROR_CODES[code]
        error = {"code": code, "problems": list(problems), "cause": entry.cause, "remedy": entry.remedy}
        say_json({"error": error})
    print(_words(code, problems), file=sys.stderr)  # noqa: T201


def _words(code: str, problems: Sequence[str]) -> str:
    entry = ERROR_CODES[code]
    lines = [f"adloco-peer: {code}: {problem}" for problem in problems]
    return "\n".join([*lines, f"  cause:  {entry.cause}", f"  remedy: {entry.remedy}"])


class _WithFields(logging.Formatter):
    """Shows what a log call gave as `extra`, too: where, and why."""

    _OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        fields = [f"{name} {value}" for name, value in vars(record).items() if name not in self._OWN]
        return ", ".join([super().format(record), *fields])


class _Parser(argparse.ArgumentParser):
    """A parser whose errors carry a code, as all others do, and name what was probably meant."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.verbs: Mapping[str, _Parser] = {}
        self._given: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Keeps the words for a possible error."""
        self._given = list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        verb = next((word for word in self._given if not word.startswith("-")), None)
        if verb is not None and verb in self.verbs:
            self.verbs[verb].error(message)  # the same words mean other things after another verb
        self.print_usage(sys.stderr)
        self.exit(2, _words("E200", [self._unknown(verb) or message]) + "\n")

    def _unknown(self, verb: str | None) -> str | None:
        """The misspelt verb or option, if there is one; argparse would report what is missing instead."""
        if self.verbs and verb is not None:
            near = difflib.get_close_matches(verb, self.verbs, n=1)
            return f"{verb}: no such verb" + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(self.verbs)}")
        options = set(re.findall(r"--[a-z-]+", self.format_help()))
        for option in (word.partition("=")[0] for word in self._given if word.startswith("--") and word != "--"):
            if not any(known.startswith(option) for known in options):
                near = difflib.get_close_matches(option, options, n=1)
                return f"{option}: no such option of {self.prog}" + (f"; did you mean {near[0]}?" if near else "")
        return None


class _Version(argparse.Action):
    """Prints the version, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from adloco_p2p.commands.support import version

        parser.exit(version(argparse.Namespace()))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="adloco-peer", description=DESCRIPTION)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    parser.verbs = verbs.choices
    for add in (_training, _admission, _control, _doctor, _model, _views, _planning, _support, _simulate, _config_verbs):
        add(verbs)  # in the order of the help page
    _verbosity(parser)
    return parser


def _verbosity(parser: _Parser) -> None:
    """How much every verb prints."""
    for verb in parser.verbs.values():
        _verbosity(verb)
    if not parser.verbs:
        how_much = parser.add_mutually_exclusive_group()
        how_much.add_argument("-v", "--verbose", action="store_true", help="also what usually goes without saying")
        how_much.add_argument("-q", "--quiet", action="store_true", help="only results, warnings and errors")


def _training(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    """Verbs that run a peer, many of them, or a bootstrap."""
    start = verbs.add_parser("start", help="create a run in a directory and train it, or resume it")
    _config(start)
    _workdir(start)
    start.add_argument("--rounds", type=_positive, metavar="R", help="outer rounds of the run (short for --set work.rounds=R)")
    start.add_argument(
        "--initial-peers",
        nargs="+",
        action="extend",
        default=[],
        metavar="ADDR",
        help="make the run known through these peers, such as a bootstrap",
    )
    start.add_argument("--offline", action="store_true", help="no network: others cannot join")
    _of_swarm(start)
    _machine(start)
    _network(start)
    start.set_defaults(verb="train:start")

    join = verbs.add_parser("join", help="take part in a run that others have started")
    join.add_argument(
        "--initial-peers", nargs="+", action="extend", required=True, metavar="ADDR", help="addresses of peers, or join links"
    )
    _workdir(join)
    join.add_argument("--run", metavar="ID", help="which run, where several are known: its digest or the beginning of it")
    _of_swarm(join)
    join.add_argument("--max-instances", type=_positive, metavar="K", help="host at most so many instances")
    _machine(join)
    _network(join)
    join.set_defaults(verb="train:join")

    keep = verbs.add_parser("keep", help="hold a run's newest states and its ledger for others, and train nothing")
    keep.add_argument(
        "--initial-peers", nargs="+", action="extend", required=True, metavar="ADDR", help="addresses of peers, or join links"
    )
    _workdir(keep)
    keep.add_argument("--run", metavar="ID", help="which run, where several are known: its digest or the beginning of it")
    _machine(keep)
    _network(keep)
    keep.set_defaults(verb="train:keep", gather=False)

    swarm = verbs.add_parser("swarm", help="a whole swarm on this machine: real processes on loopback")
    _config(swarm)
    _workdir(swarm)
    swarm.add_argument("--peers", type=_positive, required=True, metavar="N", help="how many peers")
    swarm.add_argument("--rounds", type=_positive, metavar="R", help="outer rounds of the run")
    swarm.add_argument("--no-wait", action="store_true", help="begin with the first peer; the others join a run under way")
    swarm.add_argument("--export", type=Path, metavar="DIR", help="write the model there at the end")
    swarm.add_argument(
        "--peer-set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change a setting of every peer"
    )
    swarm.add_argument("--plain", action="store_true", help="one line per round instead of the live view")
    swarm.set_defaults(verb="swarm:swarm")

    bootstrap = verbs.add_parser("bootstrap", help="help peers to find each other, and relay; train nothing")
    _workdir(bootstrap)
    bootstrap.add_argument("--initial-peers", nargs="+", action="extend", default=[], metavar="ADDR", help="other peers")
    _settings_of_machine(bootstrap)
    _network(bootstrap)
    bootstrap.set_defaults(verb="train:bootstrap")


def _admission(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    """Verbs about the peers that a run lets in."""
    invite = verbs.add_parser("invite", help="print a link that lets others into your run, or end one")
    _workdir(invite)
    how_many = invite.add_mutually_exclusive_group()
    how_many.add_argument("--seats", type=_positive, default=8, metavar="N", help="one link for N peers (default 8)")
    how_many.add_argument("--each", type=_positive, metavar="N", help="N links, each for one peer")
    how_many.add_argument("--revoke", metavar="LINK", help="end this invitation: the link, or its key")
    invite.add_argument(
        "--rounds", type=_positive, default=1000, metavar="R", help="good for R rounds from now on (default 1000)"
    )
    _json(invite)
    invite.set_defaults(verb="admission:invite")

    members = verbs.add_parser("members", help="the peers with a seat, what they count, invitations and bans")
    _workdir(members)
    _json(members)
    members.set_defaults(verb="admission:members")

    ban = verbs.add_parser("ban", help="end a peer's seat in your run, and keep it out")
    ban.add_argument("peer", metavar="PEER", help="its id, or the beginning or the end of it")
    ban.add_argument("--reason", type=_reason, default="", metavar="TEXT", help="everybody can read it in the ledger")
    _workdir(ban)
    ban.set_defaults(verb="admission:ban")

    unban = verbs.add_parser("unban", help="let a banned peer in again")
    unban.add_argument("peer", metavar="PEER", help="its id, or the beginning or the end of it")
    _workdir(unban)
    unban.set_defaults(verb="admission:unban")
    _signers(verbs)


def _signers(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    """Verbs of a run's signers about each other and about the whole run."""
    signers = verbs.add_parser("signers", help="the peers that may invite, ban and command; add or remove one")
    changes = signers.add_mutually_exclusive_group()
    changes.add_argument("--add", metavar="PEER", help="a whole peer id: its key may invite, ban and command from then on")
    changes.add_argument("--remove", metavar="PEER", help="its id, or the beginning or the end of it")
    _workdir(signers)
    _json(signers)
    signers.set_defaults(verb="signing:signers")

    command = verbs.add_parser("command", help="end, pause, resume or change your run for all of its peers")
    orders = command.add_subparsers(title="verbs", required=True, metavar="VERB")
    command.verbs = orders.choices
    stop = orders.add_parser("stop", help="end the run for all peers, as at its normal end")
    stop.add_argument("--after-round", type=_natural, default=0, metavar="R", help="the last round (default: the next one)")
    pause = orders.add_parser("pause", help="no peer trains from a round on, until you resume the run")
    pause.add_argument("--from-round", type=_natural, default=0, metavar="R", help="(default: as soon as all can know it)")
    resume = orders.add_parser("resume", help="go on after a pause; withdraw a pause or an end that is to come")
    change = orders.add_parser("set", help="change the length of the run or its learning rate")
    change.add_argument("--from-round", type=_natural, default=0, metavar="R", help="(default: as soon as all can know it)")
    length = change.add_mutually_exclusive_group()
    length.add_argument("--rounds", type=_positive, metavar="N", help="the run ends after N rounds in all")
    length.add_argument("--samples", type=_positive, metavar="N", help="the run ends after N samples in all")
    change.add_argument(
        "--learning-rate-factor",
        type=_factor,
        metavar="X",
        help="times the configured learning rate; 1: as it was",
    )
    for name, parser in (("stop", stop), ("pause", pause), ("resume", resume), ("set", change)):
        parser.add_argument("--reason", type=_reason, default="", metavar="TEXT", help="everybody can read it in the ledger")
        _workdir(parser)
        parser.set_defaults(verb="signing:command", order=name)


def _reason(text: str) -> str:
    from adloco_p2p.core.model.ledger_entry import MAX_REASON

    if len(text) > MAX_REASON:
        raise argparse.ArgumentTypeError(f"at most {MAX_REASON} characters")
    return text


def _doctor(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    doctor = verbs.add_parser("doctor", help="check this machine, and the way to others, before anything is downloaded")
    doctor.add_argument(
        "--initial-peers",
        nargs="+",
        action="extend",
        default=[],
        metavar="ADDR",
        help="addresses of peers, or join links: can they be reached, can they reach this machine, how fast (default: offline)",
    )
    doctor.add_argument("--workdir", type=Path, metavar="DIR", help="of a node, which may be running (default: here)")
    _settings_of_machine(doctor)
    _network(doctor)
    _json(doctor)
    doctor.set_defaults(verb="doctor:doctor")


def _model(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    """Verbs for the trained model."""
    export = verbs.add_parser("export", help="write the model as a directory that transformers loads")
    _workdir(export)
    export.add_argument("--output", type=Path, required=True, metavar="DIR", help="new or empty directory")
    export.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="of the written weights; else that of the pretrained ones, or float32",
    )
    _instance(export)
    export.add_argument(
        "--push", metavar="OWNER/NAME", help="upload it to the hub as well, into a private repository where there is none"
    )
    _json(export)
    export.set_defaults(verb="trained_model:export")

    importing = verbs.add_parser("import", help="make a directory for model.pretrained from a state dict")
    _config(importing)
    importing.add_argument("--weights", type=Path, required=True, metavar="FILE", help="of torch.save, or safetensors")
    importing.add_argument("--output", type=Path, required=True, metavar="DIR", help="new or empty directory")
    importing.set_defaults(verb="import_weights:import_weights")

    evaluate = verbs.add_parser("evaluate", help="held-out loss of every live instance and of their merge, or scores on tasks")
    _workdir(evaluate)
    evaluate.add_argument(
        "--data", type=Path, metavar="FILE", help="text or rows of this file instead of the run's held-out ones"
    )
    evaluate.add_argument(
        "--tasks",
        nargs="+",
        action="extend",
        default=[],
        metavar="TASK",
        help="scores of the merged model on tasks of lm-eval, instead of a loss: their names, or YAML files, whose code is run",
    )
    evaluate.add_argument("--limit", type=_positive, metavar="N", help="of each task the first N documents")
    evaluate.add_argument("--chat", action="store_true", help="write the prompts of tasks by the chat template")
    _json(evaluate)
    evaluate.set_defaults(verb="evaluation:evaluate")

    generate = verbs.add_parser("generate", help="sample text from the model")
    _workdir(generate)
    generate.add_argument("--prompt", required=True, metavar="TEXT")
    generate.add_argument("--max-new-tokens", type=_positive, default=200, metavar="N")
    generate.add_argument("--temperature", type=float, default=0.7, help="0: always the most likely token")
    generate.add_argument("--seed", type=int, default=0)
    _instance(generate)
    _json(generate)
    generate.set_defaults(verb="trained_model:generate")


def _views(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    """Verbs that show what happened in a run."""
    report = verbs.add_parser("report", help="plot the run: loss, batch growth, merges, time")
    _workdir(report)
    report.add_argument("--output", type=Path, required=True, metavar="DIR")
    _json(report)
    report.set_defaults(verb="inspect:report")

    dashboard = verbs.add_parser("dashboard", help="the page of a run in a browser: of others, read-only, or of this machine")
    dashboard.add_argument(
        "--initial-peers", nargs="+", action="extend", default=[], metavar="ADDR", help="addresses of peers, or join links"
    )
    dashboard.add_argument("--run", metavar="ID", help="which run, where several are known: its digest or the beginning of it")
    dashboard.add_argument("--workdir", type=Path, metavar="DIR", help="show the run that lies here instead")
    dashboard.add_argument("--port", type=int, default=8080, metavar="PORT", help="where to serve it (default 8080; 0: any)")
    dashboard.add_argument(
        "--host", default="127.0.0.1", metavar="IP", help="address to serve it on (default 127.0.0.1: this machine only)"
    )
    dashboard.set_defaults(verb="observe:dashboard")

    leaderboard = verbs.add_parser("leaderboard", help="tokens per peer, from the signed reports in the ledger")
    _workdir(leaderboard)
    _json(leaderboard)
    leaderboard.set_defaults(verb="observe:leaderboard")

    replay = verbs.add_parser("replay", help="replay the recorded events in the view")
    _workdir(replay)
    replay.add_argument("--speed", type=float, metavar="X", help="times as fast as it happened (default: half a minute in all)")
    replay.add_argument("--plain", action="store_true", help="lines instead of the live view; at once, unless --speed is given")
    replay.set_defaults(verb="observe:replay")


def _planning(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    """Verbs for estimates and for the agreed plans."""
    plan = verbs.add_parser("plan", help="estimate communications and bytes of a run before it starts")
    _config(plan)
    plan.add_argument("--samples", type=_positive, metavar="N", help="samples of the whole run (default: work.samples)")
    plan.add_argument("--peers", type=_positive, default=4, metavar="M", help="hosts per instance (default 4)")
    plan.add_argument("--mbit", type=float, default=100.0, metavar="RATE", help="line rate in Mbit/s (default 100)")
    plan.add_argument(
        "--teraflops", type=float, metavar="RATE", help="what a device delivers: how much of the time it computes"
    )
    plan.add_argument("--workdir", type=Path, metavar="DIR", help="compare with what happened in this directory")
    _json(plan)
    plan.set_defaults(verb="inspect:plan")

    ledger = verbs.add_parser("ledger", help="the agreed plans of the run; `ledger verify` recomputes and checks them all")
    ledger.add_argument(
        "action", nargs="?", choices=["verify", "bans"], help="check every link, signature and decision; or list the bans"
    )
    _workdir(ledger)
    _json(ledger)
    ledger.set_defaults(verb="audit:show")

    explain = verbs.add_parser("explain", help="why a round was planned as it was")
    explain.add_argument("round", type=int, metavar="ROUND")
    _workdir(explain)
    _json(explain)
    explain.set_defaults(verb="audit:explain")


def _support(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    explain_error = verbs.add_parser("explain-error", help="cause and remedy of an error code; without one, of all of them")
    explain_error.add_argument("code", nargs="?", metavar="CODE", help="such as E302, or 302")
    _json(explain_error)
    explain_error.set_defaults(verb="support:explain_error")

    version = verbs.add_parser("version", help="print the version")
    _json(version)
    version.set_defaults(verb="support:version")

    bundle = verbs.add_parser("bundle", help="write what helps others to understand a problem, without keys and addresses")
    _workdir(bundle)
    _json(bundle)
    bundle.set_defaults(verb="support:bundle")


def _simulate(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    simulate = verbs.add_parser("simulate", help="run a simulated swarm of whole peers and check its promises")
    swarms = simulate.add_mutually_exclusive_group(required=True)
    swarms.add_argument("--peers", type=_positive, nargs="+", metavar="N", help="swarm size, or several")
    swarms.add_argument(
        "--everyday", action="store_true", help="small swarms whose faults follow from the seed, as in the tests"
    )
    simulate.add_argument("--rounds", type=_positive, default=5, metavar="R")
    simulate.add_argument("--seeds", default="1-10", metavar="A-B", help="one run per seed (default 1-10)")
    simulate.add_argument("--loss", type=float, default=0.0, metavar="F", help="fraction of messages that are lost")
    simulate.add_argument(
        "--churn", type=float, default=0.0, metavar="F", help="joiners, and as many leavers, per peer and minute"
    )
    simulate.add_argument("--partition", type=float, default=0.0, metavar="SECONDS", help="cut the swarm in two for so long")
    simulate.add_argument("--liars", type=float, default=0.0, metavar="F", help="fraction of peers that lie in their reports")
    _json(simulate)
    simulate.set_defaults(verb="audit:simulate")


def _config_verbs(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    config = verbs.add_parser("config", help="show a configuration with the origin of every setting")
    config_verbs = config.add_subparsers(title="verbs", required=True, metavar="VERB")
    config.verbs = config_verbs.choices
    show = config_verbs.add_parser("show", help="every setting, its value, its origin, its meaning")
    _config(show)
    _json(show)
    show.set_defaults(verb="inspect:show_config")


def _control(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    """Verbs for the node that runs in a working directory."""
    status = verbs.add_parser("status", help="what the running node does now")
    status.set_defaults(verb="control:status")
    watch = verbs.add_parser("watch", help="the live view of the running node; Ctrl-C ends the view, not the node")
    watch.add_argument("--plain", action="store_true", help="one line per round instead of the live view")
    watch.set_defaults(verb="control:watch")
    bandwidth = verbs.add_parser("bandwidth", help="show the caps of the running node's traffic, or change them until it ends")
    for way in ("up", "down"):
        bandwidth.add_argument(f"--{way}", type=_rate, metavar="RATE", help="bytes per second, such as 2M or 500k; 0: no cap")
    bandwidth.set_defaults(verb="control:bandwidth")
    asking = {name: verbs.add_parser(name, help=_command_help(name)) for name in COMMANDS}
    for name, parser in asking.items():
        if name in ("pause", "drain", "leave"):
            parser.add_argument("--wait", action="store_true", help="return when it is done")
        parser.set_defaults(verb="control:command", command=name)
    for parser in (status, bandwidth, *asking.values()):
        _json(parser)
    for parser in (status, watch, bandwidth, *asking.values()):
        _workdir(parser)


def _command_help(name: Command) -> str:
    match name:
        case "pause":
            return "end the round and pause; others do not wait for this node, which keeps its state and follows the run"
        case "resume":
            return "take part again after a pause"
        case "drain":
            return "end the round, hand over, save and leave"
        case "leave":
            return "leave at once, without the round under way"
        case "checkpoint":
            return "save at the next round boundary"
    assert_never(name)


# --- arguments that several verbs share ------------------------------------------------------------------------------


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", nargs="?", type=Path, metavar="CONFIG", help="YAML or TOML file, or a shipped name (default: default)"
    )
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change a setting, such as work.rounds=8"
    )


def _workdir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", type=Path, required=True, metavar="DIR", help="everything of this peer lies here")


def _machine(parser: argparse.ArgumentParser) -> None:
    _settings_of_machine(parser)
    parser.add_argument("--plain", action="store_true", help="one line per round instead of the live view")


def _of_swarm(parser: argparse.ArgumentParser) -> None:
    """What `swarm` gives to its peers."""
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--gather", action="store_true", help=argparse.SUPPRESS)


def _network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host-maddrs", nargs="+", metavar="MADDR", help="where to listen, such as /ip4/0.0.0.0/tcp/31337")
    parser.add_argument("--announce-maddrs", nargs="+", metavar="MADDR", help="where others reach this peer, if elsewhere")


def _settings_of_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer-config", type=Path, metavar="FILE", help="settings of this machine (see peers/)")
    parser.add_argument(
        "--peer-set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change a setting of this machine"
    )


def _instance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instance", type=int, metavar="ID", help="which instance (default: the one, or the first)")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def _rate(text: str) -> int:
    """`2M` -> 2,000,000."""
    number, scale = (text[:-1], {"k": 1e3, "M": 1e6, "G": 1e9}[text[-1]]) if text[-1:] in ("k", "M", "G") else (text, 1.0)
    try:
        rate = float(number) * scale
    except ValueError:
        rate = -1.0
    if not 0 <= rate < 1e15:
        raise argparse.ArgumentTypeError(f"{text}: accepted are bytes per second, such as 2M, 500k or 0 for no cap")
    return int(rate)


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text}: a number from 0 on is accepted")
    return value


def _factor(text: str) -> float:
    from adloco_p2p.core.model.types import MAX_FACTOR

    value = float(text)
    if not 0.0 < value <= MAX_FACTOR:
        raise argparse.ArgumentTypeError(f"{text}: above 0 and at most {MAX_FACTOR:g} is accepted")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number from 1 on is accepted")
    return value
