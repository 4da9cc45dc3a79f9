"""Verbs about the peers of a run: invite, ban, unban, and the list of members that everybody can read."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from adloco_p2p.commands.audit import ban_fields, ban_lines, read_ledger
from adloco_p2p.commands.console import remark, say, say_json
from adloco_p2p.commands.signing import Signer, peer_named, signer_of, state
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.course import in_words, until, work_at
from adloco_p2p.core.model.plan import RoundPlan, roster_of
from adloco_p2p.core.model.roster_entry import FULL_STANDING, RosterEntry
from adloco_p2p.core.model.scalars import MAX_ROSTER, PeerId
from adloco_p2p.core.model.words import plural
from adloco_p2p.errors import ConfigError
from adloco_p2p.storage.admission_files import keep_invitations, read_address, read_invitations, read_statements
from adloco_p2p.storage.workdir import read_run
from adloco_p2p.swarm.discovery.invitation import Token, tokens_for
from adloco_p2p.swarm.discovery.join_link import is_link, parse_link, with_invitation


def invite(arguments: argparse.Namespace) -> int:
    """Print links that let others in, or end an invitation."""
    if arguments.revoke is None and (run := read_run(arguments.workdir)) is not None and run.admission.kind != "tickets":
        address = _address(arguments.workdir)
        if arguments.json:
            say_json({"link": address})
        else:
            say(address)
            remark(f"the run asks for no invitation: admission {run.admission.in_words}")
        return 0
    signer = signer_of(arguments.workdir)
    if arguments.revoke is not None:
        key = _invited_by(arguments.revoke, signer)
        return state(signer, "revoke", key, reason="", what=f"the end of the invitation {key}", is_json=arguments.json)
    for option, asked in (("--seats", arguments.seats), ("--each", arguments.each)):
        if asked is not None and asked > MAX_ROSTER:
            raise ConfigError(f"{option} {asked}: at most {MAX_ROSTER} is accepted", code="E200")
    address = _address(signer.workdir)
    seats, number = (1, arguments.each) if arguments.each is not None else (arguments.seats, 1)
    last_round = signer.round + arguments.rounds
    tokens = [Token.issue(signer.run.digest, signer.identity, seats=seats, last_round=last_round) for _ in range(number)]
    keep_invitations(signer.workdir, [token.to_text() for token in tokens])
    links = [with_invitation(address, token.to_text()) for token in tokens]
    if arguments.json:
        made = [{"link": link, "key": t.invitation.key} for link, t in zip(links, tokens, strict=True)]
        say_json({"seats": seats, "last_round": last_round, "invitations": made})
        return 0
    for link in links:
        say(link)
    end = until(last_round, work_at(signer.run.work, signer.ledger.plans[-1].course, signer.round))
    which = "each link" if number > 1 else "the link"
    remark(f"{which} lets in everybody who has it: {plural(seats, 'seat')} {end}")
    return 0


def ban(arguments: argparse.Namespace) -> int:
    """End a peer's seat, and keep it out."""
    signer = signer_of(arguments.workdir)
    peer = peer_named(arguments.peer, signer.ledger.members())
    if peer in signer.ledger.plans[-1].signers:
        raise ConfigError(f"PEER {peer}: is a signer of this run, which no ban ends", code="E200")
    return state(signer, "ban", peer, reason=arguments.reason, what=f"the ban of {peer}", is_json=arguments.json)


def unban(arguments: argparse.Namespace) -> int:
    """Let a banned peer in again."""
    signer = signer_of(arguments.workdir)
    waiting = [s.subject for s in read_statements(signer.workdir).values() if s.action == "ban"]
    peer = peer_named(arguments.peer, [*signer.ledger.admissions.bans(), *waiting])
    if peer == signer.identity.peer_id:
        raise ConfigError(
            f"PEER {peer}: is this signer; a signer other than the banned peer lifts a ban by evidence", code="E200"
        )
    return state(signer, "unban", peer, reason="", what=f"the end of the ban of {peer}", is_json=arguments.json)


def members(arguments: argparse.Namespace) -> int:
    """List seats, invitations and bans by the ledger of this directory."""
    run, ledger = read_ledger(arguments.workdir)
    plan = ledger.plans[-1]
    admissions = ledger.admissions
    taken, revoked, used = admissions.seats_taken(), admissions.revoked(), admissions.invitations()
    invitations = sorted({*taken, *revoked})
    if arguments.json:
        seats = [
            {
                "peer": seat.peer,
                "joined_round": seat.joined_round,
                "last_report": seat.last_report,
                "probation": seat.probation,
                "is_keeper": seat.capacity.is_keeper,
                "standing": seat.standing / FULL_STANDING,
                "invited_by": admissions.invited_by(seat.peer),
                "newest_protocol": seat.capacity.newest_protocol,
            }
            for seat in plan.roster
        ]
        document = {
            "round": plan.round,
            "admission": run.admission.kind,
            "price_minutes": run.admission.price_minutes if run.admission.kind == "work" else 0.0,
            "signers": plan.signers,
            "course": canonical.to_plain(plan.course),
            "members": seats,
            "invitations": [
                {
                    "key": key,
                    "seats": used[key].seats if key in used else None,
                    "seats_taken": taken[key],
                    "is_revoked": key in revoked,
                    "signer": used[key].signer if key in used else None,
                }
                for key in invitations
            ],
            "bans": [ban_fields(ruling) for ruling in admissions.bans().values()],
        }
        say_json(document)
        return 0
    say(f"round {plan.round}, admission {run.admission.in_words}, {plural(len(plan.roster), 'member')}")
    if ordered := in_words(plan.course, plan.round):
        say(ordered)
    for absent in (peer for peer in plan.signers if peer not in roster_of(plan)):
        say(f"signer without a seat: {absent}")
    for seat in plan.roster:
        say("  " + "  ".join(_seat_words(seat, plan, ledger)))
    for key in invitations:
        has_no_signer = key in used and used[key].signer not in plan.signers
        end = ", revoked" if key in revoked else ", ended: its signer was removed" if has_no_signer else ""
        given = f"{taken[key]} of {plural(used[key].seats, 'seat')}" if key in used else plural(taken[key], "seat")
        say(f"invitation {key}: {given} taken{end}")
    for line in ban_lines(list(admissions.bans().values())):
        say(line)
    return 0


# --- inside ----------------------------------------------------------------------------------------------------------


def _seat_words(seat: RosterEntry, plan: RoundPlan, ledger: Ledger) -> Sequence[str]:
    words = [seat.peer, f"since round {seat.joined_round}"]
    words += ["signer"] if seat.peer in plan.signers else []
    by = ledger.admissions.invited_by(seat.peer)
    invited = [f"invitation {by[-8:]}"] if by is not None else []
    newest = seat.capacity.newest_protocol
    if newest < max(other.capacity.newest_protocol for other in plan.roster):
        words.append(f"can follow protocol {newest} at most")
    if seat.capacity.is_keeper:  # its reports end no probation
        return [*words, "keeper", *invited]
    words += [f"on probation for {seat.probation} more reports"] if seat.probation else []
    words += [f"weight {seat.standing / FULL_STANDING:.2f}"] if seat.standing < FULL_STANDING else []
    return [*words, *invited]


def _invited_by(text: str, signer: Signer) -> PeerId:
    """Return the key of the invitation in a link, or the key itself. Raises ConfigError."""
    run = signer.run.digest
    if is_link(text):
        link = parse_link(text)
        if link.token is None or link.run != run:
            raise ConfigError("--revoke LINK: the link holds no invitation to this run", code="E206")
        return Token.from_text(link.token, run).invitation.key
    made = [token.invitation.key for token in tokens_for(run, read_invitations(signer.workdir))]
    known = [*made, *signer.ledger.admissions.seats_taken()]
    return peer_named(text, known, option="--revoke", what="invitation of this run, nor a join link")


def _address(workdir: Path) -> str:
    """Return the link to this run without an invitation, with the node's last addresses. Raises ConfigError."""
    link = read_address(workdir)
    if not link:
        raise ConfigError(
            f"--workdir {workdir}: no address is known that others could reach; start the node first", code="E204"
        )
    return link
