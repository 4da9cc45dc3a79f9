"""Statements of a run's signers in its ledger: the verbs `signers` and `command`, and the code that all verbs of signers
share."""

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from adloco_p2p.commands.audit import read_ledger
from adloco_p2p.commands.console import call, say, say_json
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.signers import change_problem
from adloco_p2p.core.model.course import Settings, is_paused_at
from adloco_p2p.core.model.ledger_entry import NOBODY, Action, Statement
from adloco_p2p.core.model.run_progress import samples_after
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import ConfigError
from adloco_p2p.storage.admission_files import keep_statement, read_statements, take_serial
from adloco_p2p.storage.workdir import holder_of, read_run
from adloco_p2p.swarm.p2p.identity import Identity, is_peer_id, signature

LEAST_PEER_CHARS = 6
"""The fewest characters by which a command recognises the beginning or the end of a peer id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """A signer's working directory."""

    workdir: Path
    run: RunConfig
    identity: Identity
    ledger: Ledger

    @property
    def round(self) -> int:
        return self.ledger.plans[-1].round


def signers(arguments: argparse.Namespace) -> int:
    """List the signers, or change them."""
    if arguments.add is None and arguments.remove is None:
        _, ledger = read_ledger(arguments.workdir)
        known = ledger.plans[-1].signers
        say(json.dumps(known) if arguments.json else "\n".join(known))
        return 0
    signer = signer_of(arguments.workdir)
    known = signer.ledger.plans[-1].signers
    is_added = arguments.add is not None
    peer = _whole_id(arguments.add) if is_added else peer_named(arguments.remove, known, option="--remove")
    action: Action = "add_signer" if is_added else "remove_signer"
    made = _signed(signer, action, subject=peer)
    if problem := change_problem(made, signers=known, banned=signer.ledger.admissions.bans()):
        raise ConfigError(f"PEER {peer}: the statement {problem}; `adloco-peer signers` lists the signers", code="E200")
    what = f"{peer} as a signer" if is_added else f"the removal of the signer {peer}, and the end of its invitations"
    return _leave(signer, made, what=what, is_json=arguments.json)


def command(arguments: argparse.Namespace) -> int:
    """Sign an order to all peers of the run."""
    signer = signer_of(arguments.workdir)
    is_paused = is_paused_at(signer.ledger.plans[-1].course, signer.round + 1)
    match arguments.order:
        case "stop":
            _refuse_fragments(signer, "stop")
            _refuse_past(signer, "--after-round", arguments.after_round)
            made = _signed(signer, "stop", round=arguments.after_round, reason=arguments.reason)
            what = f"the end of the run{_when('after', arguments.after_round, signer)}"
            what += ", once it is resumed" if is_paused else ""
        case "pause":
            if _pauses_already(signer):
                words = "nothing is signed: the run is paused already, and a second pause would let it train another round"
                return _told("pause", None, serial=None, is_running=_is_running(signer), words=words, is_json=arguments.json)
            _refuse_past(signer, "--from-round", arguments.from_round)
            made = _signed(signer, "pause", round=arguments.from_round, reason=arguments.reason)
            what = f"the pause{_when('before', arguments.from_round, signer)}"
        case "resume":
            if not _has_what_resume_ends(signer):
                words = "nothing is signed: no signer pauses or ends the run, so there is nothing to resume"
                return _told("resume", None, serial=None, is_running=_is_running(signer), words=words, is_json=arguments.json)
            made = _signed(signer, "resume", reason=arguments.reason)
            what = "the resumption"
        case _:
            _refuse_past(signer, "--from-round", arguments.from_round)
            made = _signed(
                signer, "change", round=arguments.from_round, settings=_settings(arguments, signer), reason=arguments.reason
            )
            what = f"the change{_when('from', arguments.from_round, signer)}"
    return _leave(signer, made, what=what, is_json=arguments.json)


def _has_what_resume_ends(signer: Signer) -> bool:
    """Return whether the run is, or will be, paused or ended by an order: of the last plan, or of a statement on its way."""
    course = signer.ledger.plans[-1].course
    waiting = (statement.action for statement in read_statements(signer.workdir).values())
    return course.paused_from is not None or course.last_round is not None or not {"pause", "stop"}.isdisjoint(waiting)


def _pauses_already(signer: Signer) -> bool:
    """Return whether the run rests from the next round on, by the last plan, and no order to resume or to end it waits."""
    course = signer.ledger.plans[-1].course
    waiting = {statement.action for statement in read_statements(signer.workdir).values()}
    return is_paused_at(course, signer.round + 1) and not {"resume", "stop"} & waiting


def _settings(arguments: argparse.Namespace, signer: Signer) -> Settings:
    if arguments.rounds is None and arguments.samples is None and arguments.learning_rate_factor is None:
        raise ConfigError("command set: nothing to change; give --rounds, --samples or --learning-rate-factor", code="E200")
    if arguments.rounds is not None or arguments.samples is not None:
        _refuse_fragments(signer, "set --rounds, --samples")
    if arguments.rounds is not None and arguments.rounds <= signer.round:
        raise ConfigError(
            f"--rounds {arguments.rounds}: it is the length of the whole run, which is in round {signer.round}; more than"
            " that is accepted, and `command stop` ends the run",
            code="E200",
        )
    if arguments.samples is not None and arguments.samples <= (given := samples_after(signer.ledger.plans[-1])):
        raise ConfigError(
            f"--samples {arguments.samples}: it is the length of the whole run, whose plans have given out {given:,} samples;"
            " more than that is accepted, and `command stop` ends the run",
            code="E200",
        )
    return Settings(rounds=arguments.rounds, samples=arguments.samples, learning_rate_factor=arguments.learning_rate_factor)


def _refuse_fragments(signer: Signer, what: str) -> None:
    """Refuse an order about the length of a run with fragments that are not streamed: its last round averages everything, and
    every peer computes the number of that round from the configuration."""
    if signer.run.averaging.fragments > 1 and signer.run.outer.overlap != "streaming":
        raise ConfigError(
            f"command {what}: the run has averaging.fragments {signer.run.averaging.fragments}, so its last round is fixed;"
            " `command pause` and --learning-rate-factor are accepted",
            code="E200",
        )


def _refuse_past(signer: Signer, option: str, round: int) -> None:
    """Refuse an order for a round that is agreed already: it would take effect at once, and an end cannot be taken back. 0: no
    round is named."""
    if 0 < round < signer.round:
        raise ConfigError(
            f"{option} {round}: round {signer.round} is agreed already; that or a later round is accepted, and without {option}"
            " the order takes effect as soon as all peers can have it",
            code="E200",
        )


def _when(word: str, round: int, signer: Signer) -> str:
    return f" {word} round {round}" if round > signer.round + 1 else ""


# --- for all verbs of signers ----------------------------------------------------------------------------------------


def signer_of(workdir: Path) -> Signer:
    """Return the signer of the directory. Raises ConfigError where the directory is not a signer's, or its run is complete."""
    if read_run(workdir) is None:
        raise ConfigError(f"--workdir {workdir}: holds no run", code="E204")
    run, ledger = read_ledger(workdir)
    identity = Identity.load(workdir / "identity.key")
    if identity.peer_id not in ledger.plans[-1].signers:
        names = ", ".join(ledger.plans[-1].signers)
        raise ConfigError(f"--workdir {workdir}: belongs to {identity.peer_id}; signers are {names}", code="E222")
    if ledger.plans[-1].is_last:
        raise ConfigError(
            f"--workdir {workdir}: the run is complete, so nobody can join it, and no ban or command takes effect any more",
            code="E234",
        )
    return Signer(workdir=workdir, run=run, identity=identity, ledger=ledger)


def state(signer: Signer, action: Action, subject: PeerId, *, reason: str, what: str, is_json: bool) -> int:
    """Sign a statement about a peer or an invitation, and leave it to the node of this directory."""
    return _leave(signer, _signed(signer, action, subject=subject, reason=reason), what=what, is_json=is_json)


def _signed(
    signer: Signer,
    action: Action,
    *,
    subject: PeerId = NOBODY,
    round: int = 0,
    settings: Settings | None = None,
    reason: str = "",
) -> Statement:
    made = [ruling.statement for ruling in signer.ledger.admissions.rulings]
    waiting = list(read_statements(signer.workdir).values())
    unsigned = Statement(
        run=signer.run.digest,
        signer=signer.identity.peer_id,
        serial=take_serial(signer.workdir, least=1 + max((known.serial for known in (*made, *waiting)), default=0)),
        action=action,
        subject=subject,
        round=round,
        settings=settings,
        reason=reason,
        signature="",
    )
    return replace(unsigned, signature=signature(signer.identity, unsigned.payload))


def _leave(signer: Signer, made: Statement, *, what: str, is_json: bool) -> int:
    keep_statement(signer.workdir, made)
    is_running = _is_running(signer)
    carrier = "the next plan carries it" if is_running else "a plan carries it after the node of this directory has started"
    words = f"signed: {what}; {carrier}. It is shown then by: {call('members', '--workdir', signer.workdir)}"
    subject = made.subject or None
    return _told(made.action, subject, serial=made.serial, is_running=is_running, words=words, is_json=is_json)


def _is_running(signer: Signer) -> bool:
    return holder_of(signer.workdir) is not None


def _told(action: Action, subject: PeerId | None, *, serial: int | None, is_running: bool, words: str, is_json: bool) -> int:
    if is_json:
        say_json({"action": action, "subject": subject, "serial": serial, "is_running": is_running, "words": words})
    else:
        say(words)
    return 0


def peer_named(text: str, known: Iterable[PeerId], *, option: str = "PEER", what: str = "peer of this ledger") -> PeerId:
    """Return the known peer whose id the text is, begins or ends. `option` and `what` say where it was given, and what is
    known: invitations are named in the same way. Raises ConfigError."""
    found = sorted({peer for peer in known if peer == text or (peer.startswith(text) or peer.endswith(text))})
    if len(text) < LEAST_PEER_CHARS or len(found) != 1:
        listed = f"; it may be {', '.join(found[:5])}" if len(found) > 1 and len(text) >= LEAST_PEER_CHARS else ""
        raise ConfigError(
            f"{option} {text}: not one {what}; accepted is its id, or {LEAST_PEER_CHARS} characters or more of"
            f" the beginning or the end{listed}; `adloco-peer members` lists them",
            code="E200",
        )
    return found[0]


def _whole_id(text: str) -> PeerId:
    """Return the id of a peer that need not have been in the run. Raises ConfigError."""
    if not is_peer_id(text):
        raise ConfigError(
            f"--add {text}: not a whole peer id; `adloco-peer members` and the first lines of a node have it", code="E200"
        )
    return PeerId(text)
