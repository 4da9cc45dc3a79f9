"""Verbs of a run's signers: invite, ban, unban; and the list of members that everybody can read."""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from adloco_p2p.commands.audit import ban_fields, ban_lines, read_ledger
from adloco_p2p.commands.console import say
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model.ledger_entry import Statement
from adloco_p2p.core.model.types import FULL_STANDING, MAX_ROSTER, PeerId, RosterEntry, RoundPlan
from adloco_p2p.errors import ConfigError
from adloco_p2p.storage.admission_files import keep_invitations, keep_statement, read_address, read_invitations, read_statements
from adloco_p2p.storage.workdir import holder_of, read_run
from adloco_p2p.swarm.discovery.invitation import Token
from adloco_p2p.swarm.discovery.join_link import is_link, parse_link, with_invitation
from adloco_p2p.swarm.p2p.identity import Identity, signature

LEAST_PEER_CHARS = 6
"""Of the beginning or the end of a peer id, as commands take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signer:
    """A signer's working directory."""

    workdir: Path
    run: RunConfig
    identity: Identity
    ledger: Ledger

    @property
    def round(self) -> int:
        return self.ledger.plans[-1].round


def invite(arguments: argparse.Namespace) -> int:
    """Print links that let others in, or end an invitation."""
    signer = _signer(arguments.workdir)
    if arguments.revoke is not None:
        key = _invited_by(arguments.revoke, signer)
        return _state(signer, "revoke", key, reason="", what=f"the invitation {key}")
    if arguments.seats > MAX_ROSTER or (arguments.each is not None and arguments.each > MAX_ROSTER):
        raise ConfigError(f"--seats, --each: at most {MAX_ROSTER} is accepted", code="E200")
    address = _address(signer.workdir)
    if signer.run.admission.kind == "open":
        say(json.dumps({"link": address}) if arguments.json else f"{address}\n# the run is open: it asks for no invitation")
        return 0
    seats, number = (1, arguments.each) if arguments.each is not None else (arguments.seats, 1)
    last_round = signer.round + arguments.rounds
    tokens = [Token.issue(signer.run.digest, signer.identity, seats=seats, last_round=last_round) for _ in range(number)]
    keep_invitations(signer.workdir, [token.to_text() for token in tokens])
    links = [with_invitation(address, token.to_text()) for token in tokens]
    if arguments.json:
        made = [{"link": link, "key": t.invitation.key} for link, t in zip(links, tokens, strict=True)]
        say(json.dumps({"seats": seats, "last_round": last_round, "invitations": made}))
        return 0
    for link in links:
        say(link)
    say(f"# each lets in everybody who has it: {seats} {'seat' if seats == 1 else 'seats'} until round {last_round}")
    return 0


def ban(arguments: argparse.Namespace) -> int:
    """End a peer's seat, and keep it out."""
    signer = _signer(arguments.workdir)
    peer = _peer(arguments.peer, signer.ledger.members())
    if peer in signer.ledger.plans[-1].signers:
        raise ConfigError(f"PEER {peer}: is a signer of this run, which no ban ends", code="E200")
    return _state(signer, "ban", peer, reason=arguments.reason, what=f"the ban of {peer}")


def unban(arguments: argparse.Namespace) -> int:
    """Let a banned peer in again."""
    signer = _signer(arguments.workdir)
    waiting = [s.subject for s in read_statements(signer.workdir).values() if s.action == "ban"]
    peer = _peer(arguments.peer, [*signer.ledger.admissions.bans(), *waiting])
    return _state(signer, "unban", peer, reason="", what=f"the end of the ban of {peer}")


def members(arguments: argparse.Namespace) -> int:
    """Seats, invitations and bans, as the ledger of this directory has them."""
    run, ledger = read_ledger(arguments.workdir)
    plan = ledger.plans[-1]
    taken, admissions = ledger.admissions.seats_taken(), ledger.admissions
    if arguments.json:
        seats = [
            {
                "peer": seat.peer,
                "joined_round": seat.joined_round,
                "last_report": seat.last_report,
                "probation": seat.probation,
                "standing": seat.standing / FULL_STANDING,
                "invited_by": admissions.invited_by(seat.peer),
            }
            for seat in plan.roster
        ]
        document = {
            "round": plan.round,
            "admission": run.admission.kind,
            "signers": plan.signers,
            "members": seats,
            "invitations": [{"key": key, "seats_taken": number} for key, number in sorted(taken.items())],
            "bans": [ban_fields(ruling) for ruling in admissions.bans().values()],
        }
        say(json.dumps(document))
        return 0
    say(f"round {plan.round}, admission {run.admission.kind}, {len(plan.roster)} members")
    for seat in plan.roster:
        say("  " + "  ".join(_seat_words(seat, plan, ledger)))
    for key, number in sorted(taken.items()):
        say(f"invitation {key}: {number} seats taken{', revoked' if key in admissions.revoked() else ''}")
    for line in ban_lines(list(admissions.bans().values())):
        say(line)
    return 0


# --- inside ----------------------------------------------------------------------------------------------------------


def _seat_words(seat: RosterEntry, plan: RoundPlan, ledger: Ledger) -> Sequence[str]:
    words = [seat.peer, f"since round {seat.joined_round}"]
    words += ["signer"] if seat.peer in plan.signers else []
    words += [f"on probation for {seat.probation} more reports"] if seat.probation else []
    words += [f"weight {seat.standing / FULL_STANDING:.2f}"] if seat.standing < FULL_STANDING else []
    by = ledger.admissions.invited_by(seat.peer)
    return [*words, *([f"invitation {by[-8:]}"] if by is not None else [])]


def _signer(workdir: Path) -> _Signer:
    """Raises ConfigError where the directory is not a signer's."""
    if read_run(workdir) is None:
        raise ConfigError(f"--workdir {workdir}: no run lies here", code="E204")
    run, ledger = read_ledger(workdir)
    identity = Identity.load_or_create(workdir / "identity.key")
    if identity.peer_id not in ledger.plans[-1].signers:
        signers = ", ".join(ledger.plans[-1].signers)
        raise ConfigError(f"--workdir {workdir}: belongs to {identity.peer_id}; signers are {signers}", code="E222")
    return _Signer(workdir=workdir, run=run, identity=identity, ledger=ledger)


def _state(signer: _Signer, action: Literal["ban", "unban", "revoke"], subject: PeerId, *, reason: str, what: str) -> int:
    """Sign a statement, and leave it to the node of this directory."""
    made = [ruling.statement for ruling in signer.ledger.admissions.rulings]
    waiting = list(read_statements(signer.workdir).values())
    unsigned = Statement(
        run=signer.run.digest,
        signer=signer.identity.peer_id,
        serial=1 + max((known.serial for known in (*made, *waiting)), default=0),
        action=action,
        subject=subject,
        reason=reason,
        signature="",
    )
    keep_statement(signer.workdir, replace(unsigned, signature=signature(signer.identity, unsigned.payload)))
    when = "with the next plan" if holder_of(signer.workdir) is not None else "after the node of this directory has started"
    say(f"{what} takes effect {when}; adloco-peer members --workdir {signer.workdir} shows it then")
    return 0


def _peer(text: str, known: Iterable[PeerId]) -> PeerId:
    """The one of the known peers that the text is, begins or ends. Raises ConfigError."""
    found = sorted({peer for peer in known if peer == text or (peer.startswith(text) or peer.endswith(text))})
    if len(text) < LEAST_PEER_CHARS or len(found) != 1:
        listed = f"; it may be {', '.join(found[:5])}" if len(found) > 1 and len(text) >= LEAST_PEER_CHARS else ""
        raise ConfigError(
            f"PEER {text}: not one peer that this ledger knows; accepted is its id, or {LEAST_PEER_CHARS} characters or more of"
            f" the beginning or the end{listed}; `adloco-peer members` lists them",
            code="E200",
        )
    return found[0]


def _invited_by(text: str, signer: _Signer) -> PeerId:
    """The key of the invitation in a link, or the key itself. Raises ConfigError."""
    run = signer.run.digest
    if is_link(text):
        link = parse_link(text)
        if link.token is None or link.run != run:
            raise ConfigError("--revoke LINK: the link holds no invitation to this run", code="E206")
        return Token.from_text(link.token, run).invitation.key
    made = [Token.from_text(token, run).invitation.key for token in read_invitations(signer.workdir)]
    return _peer(text, [*made, *signer.ledger.admissions.seats_taken()])


def _address(workdir: Path) -> str:
    """The link to this run without an invitation, as the node listened last. Raises ConfigError."""
    link = read_address(workdir)
    if not link:
        raise ConfigError(
            f"--workdir {workdir}: no address is known that others could reach; start the node first", code="E204"
        )
    return link
