"""Verbs that run a peer, and verbs for a peer that runs in a directory."""

from adloco_p2p.cli.parser import Verbs, add_verb
from adloco_p2p.cli.shared import (
    factor,
    json_output,
    machine,
    natural,
    network,
    of_swarm,
    path,
    positive,
    rate,
    reason,
    run_config,
    run_of_others,
    settings_of_machine,
    workdir,
)
from adloco_p2p.core.model.commands import COMMANDS

FROM_ROUND = "its first round (default: as soon as all can have it)"


def taking_part(verbs: Verbs) -> None:
    """Add the verbs that run one peer of a run."""
    start = add_verb(verbs, "start", "create a run in a directory and train it, or resume it")
    run_config(start)
    workdir(start)
    start.add_argument("--rounds", type=positive, metavar="R", help="outer rounds of the run (short for --set work.rounds=R)")
    start.add_argument(
        "--initial-peers",
        nargs="+",
        action="extend",
        default=[],
        metavar="ADDR",
        help="make the run known through these peers, such as a bootstrap",
    )
    start.add_argument("--offline", action="store_true", help="no network: others cannot join")
    of_swarm(start)
    machine(start)
    network(start)
    start.set_defaults(verb="train:start")

    join = add_verb(verbs, "join", "take part in a run that others have started")
    run_of_others(join)
    workdir(join)
    of_swarm(join)
    join.add_argument("--max-instances", type=positive, metavar="K", help="host at most K instances")
    machine(join)
    network(join)
    join.set_defaults(verb="train:join")

    keep = add_verb(verbs, "keep", "hold a run's newest states and its ledger for others, and train nothing")
    run_of_others(keep)
    workdir(keep)
    machine(keep)
    network(keep)
    keep.set_defaults(verb="train:keep", gather=False)


def helping(verbs: Verbs) -> None:
    """Add the verbs that run many peers, or a bootstrap."""
    swarm = add_verb(verbs, "swarm", "a whole swarm on this machine: real processes on loopback")
    run_config(swarm)
    workdir(swarm, "a directory of each peer")
    swarm.add_argument("--peers", type=positive, required=True, metavar="N", help="how many peers")
    swarm.add_argument("--rounds", type=positive, metavar="R", help="outer rounds of the run")
    swarm.add_argument("--no-wait", action="store_true", help="begin with the first peer; the others join a run under way")
    swarm.add_argument("--export", type=path, metavar="DIR", help="write the model there at the end")
    swarm.add_argument(
        "--peer-set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change a setting of every peer"
    )
    swarm.add_argument("--plain", action="store_true", help="one line per round instead of the live view")
    swarm.set_defaults(verb="swarm:swarm")

    bootstrap = add_verb(verbs, "bootstrap", "help peers to find each other, and relay; train nothing")
    workdir(bootstrap)
    bootstrap.add_argument("--initial-peers", nargs="+", action="extend", default=[], metavar="ADDR", help="other peers")
    settings_of_machine(bootstrap)
    network(bootstrap)
    bootstrap.set_defaults(verb="train:bootstrap")


def admission(verbs: Verbs) -> None:
    """Add the verbs about the peers that a run lets in."""
    invite = add_verb(verbs, "invite", "print a link that lets others into your run, or end one")
    workdir(invite)
    how_many = invite.add_mutually_exclusive_group()
    how_many.add_argument("--seats", type=positive, default=8, metavar="N", help="one link for N peers (default 8)")
    how_many.add_argument("--each", type=positive, metavar="N", help="N links, each for one peer")
    how_many.add_argument("--revoke", metavar="LINK", help="end this invitation: the link, or its key")
    invite.add_argument(
        "--rounds", type=positive, default=1000, metavar="R", help="good for R rounds from now on (default 1000)"
    )
    json_output(invite)
    invite.set_defaults(verb="admission:invite")

    members = add_verb(verbs, "members", "the peers with a seat, the weight of their work, invitations and bans")
    workdir(members)
    json_output(members)
    members.set_defaults(verb="admission:members")

    ban = add_verb(verbs, "ban", "end a peer's seat in your run, and keep it out")
    ban.add_argument("peer", metavar="PEER", help="its id, or the beginning or the end of it")
    ban.add_argument("--reason", type=reason, default="", metavar="TEXT", help="everybody can read it in the ledger")
    workdir(ban)
    json_output(ban)
    ban.set_defaults(verb="admission:ban")

    unban = add_verb(verbs, "unban", "let a banned peer in again")
    unban.add_argument("peer", metavar="PEER", help="its id, or the beginning or the end of it")
    workdir(unban)
    json_output(unban)
    unban.set_defaults(verb="admission:unban")
    _signers(verbs)


def _signers(verbs: Verbs) -> None:
    """Add the verbs of a run's signers about each other and about the whole run."""
    signers = add_verb(verbs, "signers", "the peers that may invite, ban and command; add or remove one")
    changes = signers.add_mutually_exclusive_group()
    changes.add_argument("--add", metavar="PEER", help="a whole peer id: its key may invite, ban and command from then on")
    changes.add_argument("--remove", metavar="PEER", help="its id, or the beginning or the end of it")
    workdir(signers)
    json_output(signers)
    signers.set_defaults(verb="signing:signers")

    command = add_verb(verbs, "command", "end, pause, resume or change your run for all of its peers")
    orders = command.add_subparsers(title="verbs", required=True, metavar="VERB")
    command.verbs = orders.choices
    stop = add_verb(orders, "stop", "end the run for all peers, as at its normal end", of="command")
    stop.add_argument("--after-round", type=natural, default=0, metavar="R", help="the last round (default: the next one)")
    pause = add_verb(orders, "pause", "no peer trains from a round on, until you resume the run", of="command")
    pause.add_argument("--from-round", type=natural, default=0, metavar="R", help=FROM_ROUND)
    resume = add_verb(orders, "resume", "go on after a pause; withdraw a pause or an end that is to come", of="command")
    change = add_verb(orders, "set", "change the length of the run or its learning rate", of="command")
    change.add_argument("--from-round", type=natural, default=0, metavar="R", help=FROM_ROUND)
    length = change.add_mutually_exclusive_group()
    length.add_argument("--rounds", type=positive, metavar="N", help="the run ends after N rounds in all")
    length.add_argument("--samples", type=positive, metavar="N", help="the run ends after N samples in all")
    change.add_argument(
        "--learning-rate-factor",
        type=factor,
        metavar="X",
        help="times the configured learning rate; 1: as it was",
    )
    for name, parser in (("stop", stop), ("pause", pause), ("resume", resume), ("set", change)):
        parser.add_argument("--reason", type=reason, default="", metavar="TEXT", help="everybody can read it in the ledger")
        workdir(parser)
        json_output(parser)
        parser.set_defaults(verb="signing:command", order=name)


def doctor(verbs: Verbs) -> None:
    doctor = add_verb(verbs, "doctor", "check this machine, and the way to others, before anything is downloaded")
    doctor.add_argument(
        "--initial-peers",
        nargs="+",
        action="extend",
        default=[],
        metavar="ADDR",
        help="addresses of peers, or join links: can they be reached, can they reach this machine, how fast (default: offline)",
    )
    doctor.add_argument(
        "--workdir", type=path, metavar="DIR", help="directory of a node, which may be running (default: the present one)"
    )
    settings_of_machine(doctor)
    network(doctor)
    json_output(doctor)
    doctor.set_defaults(verb="doctor:doctor")


def control(verbs: Verbs) -> None:
    """Add the verbs for the node that runs in a working directory."""
    status = add_verb(verbs, "status", "what the running node does now")
    status.set_defaults(verb="control:status")
    watch = add_verb(verbs, "watch", "the live view of the running node; Ctrl-C ends the view, not the node")
    watch.add_argument("--plain", action="store_true", help="one line per round instead of the live view")
    watch.set_defaults(verb="control:watch")
    bandwidth = add_verb(verbs, "bandwidth", "show the caps of the running node's traffic, or change them until it ends")
    for way in ("up", "down"):
        bandwidth.add_argument(
            f"--{way}", type=rate, metavar="RATE", help="bytes per second, such as 2M (16 Mbit/s) or 500k; 0: no cap"
        )
    bandwidth.set_defaults(verb="control:bandwidth")
    asking = {name: add_verb(verbs, name, command.words) for name, command in COMMANDS.items()}
    for name, parser in asking.items():
        if COMMANDS[name].done_in:
            parser.add_argument("--wait", action="store_true", help="return when it is done")
        parser.set_defaults(verb="control:command", command=name)
    for parser in (status, bandwidth, *asking.values()):
        json_output(parser)
    for parser in (status, watch, bandwidth, *asking.values()):
        workdir(parser)
