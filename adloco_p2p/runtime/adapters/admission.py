"""A node's part in admission: it shows its ticket, invites others, passes on its owner's statements, and ends if it is not let
in."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.model.ledger_entry import Ticket
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import ConfigError
from adloco_p2p.storage.admission_files import (
    keep_invitations,
    keep_ticket,
    read_invitations,
    read_statements,
    read_ticket,
)
from adloco_p2p.swarm.discovery.invitation import Token, tokens_for
from adloco_p2p.swarm.discovery.join_link import is_link, parse_link, token_of
from adloco_p2p.swarm.p2p.identity import Identity
from adloco_p2p.views.units import one_line

START_SEATS = 8
"""The seats of the invitation in the link that `start` prints."""
UNKNOWN_END = 10_000
"""The last round of that invitation if the run ends by samples."""
PERIOD_SECONDS = 1.0
REFUSED_SECONDS = 15.0
"""How long a peer that is not let in waits for plans that may change that. It catches up in less time."""


def ticket_for(workdir: Path, run: RunConfig, me: PeerId, links: Sequence[str]) -> Ticket | None:
    """Return the ticket that this peer shows to be let in: from the invitation of a link, or the one that it used before.

    None if the run asks for none, or if a peer that has agreed on plans before has none. Raises ConfigError if the peer needs a
    ticket and has none.
    """
    if run.admission.kind != "tickets" or me in (run.author, *run.founders):
        return None
    text = token_of(links)
    if text is not None:
        ticket = Token.from_text(text, run.digest).ticket(me)
        keep_ticket(workdir, ticket)
        return ticket
    known = read_ticket(workdir)
    journal = workdir / "journal.bin"
    if known is None and not (journal.exists() and journal.stat().st_size):
        raise ConfigError(
            f"run {run.name[:60]} ({run.digest[:16]}) lets in those with an invitation, and this link holds none; ask one of"
            " its signers for a link that `adloco-peer invite` prints",
            code="E221",
        )
    return known


def check_invitations(links: Sequence[str]) -> None:
    """Raise ConfigError for a join link whose invitation is damaged, before anything is fetched."""
    for link in (parse_link(text) for text in links if is_link(text)):
        if link.token is not None:
            Token.from_text(link.token, link.run)


def first_invitation(workdir: Path, run: RunConfig, signer: Identity) -> Token:
    """Return the invitation of the link that `start` prints, the same at every start."""
    for token in tokens_for(run.digest, read_invitations(workdir))[:1]:
        return token
    token = Token.issue(run.digest, signer, seats=START_SEATS, last_round=run.work.rounds or UNKNOWN_END)
    keep_invitations(workdir, [token.to_text()])
    return token


async def pass_on_statements(workdir: Path, agreement: GossipAgreement, say: Callable[[str], None]) -> None:
    """Pass on the statements that commands such as `adloco-peer ban` wrote, until cancelled. A file is removed when the ledger
    has its statement. One that cannot be read or removed is told once, and ends nothing."""
    told: set[Path] = set()

    def tell(path: Path, problem: str) -> None:
        if path not in told:
            told.add(path)
            say(problem)

    while True:
        for path, statement in read_statements(workdir, on_damage=lambda path, error: tell(path, str(error))).items():
            if agreement.ledger.admissions.has(statement):
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:  # as where another user's command wrote it
                    tell(path, f"{path}: its statement is in the ledger, and it cannot be removed: {error.strerror}")
            elif problem := agreement.state(statement):
                tell(path, f"{path}: {problem}")
        await asyncio.sleep(PERIOD_SECONDS)


_LINK_REMEDY = "ask one of its signers for a link that `adloco-peer invite` prints"
_BAN_REMEDY = "no link helps; a signer of the run lifts a ban with `adloco-peer unban`"


async def watch_admission(agreement: GossipAgreement) -> None:
    """Raise ConfigError once the run has not let this peer in for REFUSED_SECONDS, for a reason that the ledger gives."""
    since: float | None = None
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        reason, now = agreement.refusal(), time.monotonic()
        since = (since if since is not None else now) if reason else None
        if since is not None and now - since >= REFUSED_SECONDS:
            ban = agreement.ledger.admissions.bans().get(agreement.me)
            why = f": {one_line(ban.statement.reason)}" if ban is not None and ban.statement.reason else ""
            remedy = _LINK_REMEDY if ban is None else _BAN_REMEDY
            raise ConfigError(f"the run does not let this peer in: {reason}{why}; {remedy}", code="E221")
