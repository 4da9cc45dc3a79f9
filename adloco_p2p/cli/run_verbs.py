"""Verbs about a run: estimates before it, its model, its ledger, and its history."""

import argparse

from adloco_p2p.cli.parser import Verbs, add_verb
from adloco_p2p.cli.shared import (
    instance,
    json_output,
    natural,
    number,
    path,
    positive,
    run_config,
    settings_of_machine,
    shards,
    whole,
    workdir,
)


def model(verbs: Verbs) -> None:
    """Add the verbs for the trained model."""
    export = add_verb(verbs, "export", "write the model as a directory that transformers loads")
    workdir(export)
    export.add_argument("--output", type=path, required=True, metavar="DIR", help="new or empty directory")
    export.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="of the written weights; else that of the pretrained ones, or float32",
    )
    instance(export)
    export.add_argument(
        "--push", metavar="OWNER/NAME", help="upload it to the hub as well, into a private repository where there is none"
    )
    json_output(export)
    export.set_defaults(verb="trained_model:export")

    importing = add_verb(verbs, "import", "make a directory for model.pretrained from a state dict")
    run_config(importing)
    importing.add_argument("--weights", type=path, required=True, metavar="FILE", help="of torch.save, or safetensors")
    importing.add_argument("--output", type=path, required=True, metavar="DIR", help="new or empty directory")
    json_output(importing)
    importing.set_defaults(verb="import_weights:import_weights")

    evaluate = add_verb(verbs, "evaluate", "held-out loss of every live instance and of their merge, or scores on tasks")
    workdir(evaluate)
    evaluate.add_argument(
        "--data", type=path, metavar="FILE", help="text or rows of this file instead of the run's held-out ones"
    )
    evaluate.add_argument(
        "--tasks",
        nargs="+",
        action="extend",
        default=[],
        metavar="TASK",
        help="scores of the merged model on tasks of lm-eval, instead of a loss: their names, or YAML files, whose code is run",
    )
    evaluate.add_argument("--limit", type=positive, metavar="N", help="of each task the first N documents")
    evaluate.add_argument("--chat", action="store_true", help="write the prompts of tasks by the chat template")
    evaluate.add_argument("--tasks-path", type=path, metavar="DIR", help="further tasks: YAML files, whose code is run")
    evaluate.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)
    json_output(evaluate)
    evaluate.set_defaults(verb="evaluation:evaluate")

    generate = add_verb(verbs, "generate", "sample text from the model")
    workdir(generate)
    generate.add_argument(
        "--prompt",
        required=True,
        metavar="TEXT",
        help="how the text begins; in a run on conversations a user's message, which the model answers",
    )
    generate.add_argument("--max-new-tokens", type=positive, default=200, metavar="N", help="length at most (default 200)")
    generate.add_argument(
        "--temperature", type=number, default=0.7, metavar="T", help="0: always the most likely token (default 0.7)"
    )
    generate.add_argument("--seed", type=whole, default=0, metavar="N", help="the same one gives the same text (default 0)")
    instance(generate)
    json_output(generate)
    generate.set_defaults(verb="trained_model:generate")


def views(verbs: Verbs) -> None:
    """Add the verbs that show what happened in a run."""
    report = add_verb(verbs, "report", "plot the run: loss, batch growth, merges, time; or several runs side by side")
    report.add_argument(
        "runs", nargs="*", type=path, metavar="RUN", help="working directories of several runs, to compare them"
    )
    report.add_argument("--workdir", type=path, metavar="DIR", help="the one run to plot: everything of its peer lies here")
    report.add_argument(
        "--labels",
        nargs="+",
        metavar="LABEL",
        help="one per RUN; the same one for seeds of one thing (default: the directories)",
    )
    words = "where the pictures and tables go; with --html, also FILE.html"
    report.add_argument("--output", type=path, required=True, metavar="DIR", help=words)
    report.add_argument("--html", action="store_true", help="one file for a browser instead of pictures and a page")
    json_output(report)
    report.set_defaults(verb="inspect:report")

    dashboard = add_verb(verbs, "dashboard", "the page of a run in a browser: of others, read-only, or of this machine")
    dashboard.add_argument(
        "runs", nargs="*", type=path, metavar="RUN", help="working directories of several runs of this machine, side by side"
    )
    dashboard.add_argument(
        "--initial-peers", nargs="+", action="extend", default=[], metavar="ADDR", help="addresses of peers, or join links"
    )
    dashboard.add_argument("--run", metavar="ID", help="which run, where several are known: its digest or the beginning of it")
    dashboard.add_argument("--workdir", type=path, metavar="DIR", help="show the run that lies here instead")
    dashboard.add_argument("--labels", nargs="+", metavar="LABEL", help="one per RUN (default: the directories)")
    dashboard.add_argument("--port", type=whole, default=8080, metavar="PORT", help="where to serve it (default 8080; 0: any)")
    dashboard.add_argument(
        "--host", default="127.0.0.1", metavar="IP", help="address to serve it on (default 127.0.0.1: this machine only)"
    )
    dashboard.add_argument(
        "--public-name", default="", metavar="NAME", help="of the web server in front of this one, such as run.example.org"
    )
    dashboard.set_defaults(verb="observe:dashboard")

    leaderboard = add_verb(verbs, "leaderboard", "tokens per peer, from the signed reports in the ledger")
    workdir(leaderboard)
    json_output(leaderboard)
    leaderboard.set_defaults(verb="observe:leaderboard")

    replay = add_verb(verbs, "replay", "replay the recorded events in the view")
    workdir(replay)
    replay.add_argument(
        "--speed", type=number, metavar="X", help="times as fast as it happened (default: half a minute in all)"
    )
    replay.add_argument("--plain", action="store_true", help="lines instead of the live view; at once, unless --speed is given")
    replay.set_defaults(verb="observe:replay")


def planning(verbs: Verbs) -> None:
    """Add the verb that estimates a run before it starts."""
    plan = add_verb(verbs, "plan", "estimate the rounds, bytes and memory of a run before it starts")
    run_config(plan)
    plan.add_argument("--samples", type=positive, metavar="N", help="samples of the whole run (default: work.samples)")
    plan.add_argument("--peers", type=positive, default=4, metavar="M", help="hosts per instance (default 4)")
    plan.add_argument("--mbit", type=number, default=100.0, metavar="RATE", help="line rate in Mbit/s (default 100)")
    plan.add_argument("--shards", type=shards, default=1, metavar="N", help="memory of a model that is divided over N devices")
    plan.add_argument(
        "--teraflops",
        type=number,
        metavar="RATE",
        help="what a device delivers, to estimate the part of the time in which it computes",
    )
    plan.add_argument(
        "--workdir", type=path, metavar="DIR", help="compare with what happened in this directory; its run, without CONFIG"
    )
    json_output(plan)
    plan.set_defaults(verb="plan:plan")


def ledger(verbs: Verbs) -> None:
    """Add the verbs for the agreed plans."""
    ledger = add_verb(verbs, "ledger", "the agreed plans of the run; `ledger verify` recomputes and checks them all")
    ledger.add_argument(
        "action", nargs="?", choices=["verify", "bans"], help="check every link, signature and decision; or list the bans"
    )
    workdir(ledger)
    json_output(ledger)
    ledger.set_defaults(verb="audit:show")

    explain = add_verb(verbs, "explain", "why a round was planned as it was")
    explain.add_argument("round", type=natural, metavar="ROUND", help="its number, from 0 on")
    workdir(explain)
    json_output(explain)
    explain.set_defaults(verb="audit:explain")


def support(verbs: Verbs) -> None:
    explain_error = add_verb(verbs, "explain-error", "cause and remedy of an error code; without one, of all of them")
    explain_error.add_argument("code", nargs="?", metavar="CODE", help="such as E302, or 302")
    json_output(explain_error)
    explain_error.set_defaults(verb="support:explain_error")

    version = add_verb(verbs, "version", "print the version")
    json_output(version)
    version.set_defaults(verb="support:version")

    completion = add_verb(verbs, "completion", "print the code that makes a shell complete verbs, options and settings")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose code")
    completion.set_defaults(verb="support:completion")

    bundle = add_verb(verbs, "bundle", "write what helps others to understand a problem, without keys and addresses")
    workdir(bundle)
    json_output(bundle)
    bundle.set_defaults(verb="support:bundle")


def simulate(verbs: Verbs) -> None:
    simulate = add_verb(verbs, "simulate", "run a simulated swarm of whole peers and check its promises")
    swarms = simulate.add_mutually_exclusive_group(required=True)
    swarms.add_argument("--peers", type=positive, nargs="+", metavar="N", help="swarm size, or several")
    swarms.add_argument(
        "--everyday", action="store_true", help="small swarms whose faults follow from the seed, as in the tests"
    )
    simulate.add_argument("--rounds", type=positive, default=5, metavar="R", help="of each run (default 5)")
    simulate.add_argument("--seeds", default="1-10", metavar="A-B", help="one run per seed (default 1-10)")
    simulate.add_argument("--loss", type=number, default=0.0, metavar="F", help="fraction of messages that are lost")
    simulate.add_argument(
        "--churn", type=number, default=0.0, metavar="F", help="joiners, and as many leavers, per peer and minute"
    )
    simulate.add_argument("--partition", type=number, default=0.0, metavar="SECONDS", help="cut the swarm in two for so long")
    simulate.add_argument("--liars", type=number, default=0.0, metavar="F", help="fraction of peers that lie in their reports")
    json_output(simulate)
    simulate.set_defaults(verb="audit:simulate")


def config_verbs(verbs: Verbs) -> None:
    config = add_verb(verbs, "config", "show a configuration with the origin of every setting")
    config_verbs = config.add_subparsers(title="verbs", required=True, metavar="VERB")
    config.verbs = config_verbs.choices
    show = add_verb(config_verbs, "show", "every setting, its value, its origin, its meaning", of="config")
    run_config(show)
    show.add_argument("--peer", action="store_true", help="the settings of this machine instead of those of a run")
    settings_of_machine(show)
    json_output(show)
    show.set_defaults(verb="inspect:show_config")
