"""Invitations in join links: what a signer issues, what a joiner makes of it, and what is refused."""

from dataclasses import replace

import pytest

from adloco_p2p import decode
from adloco_p2p.core.ledger.admission import Admissions, Door
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import JoinRequest
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.errors import ConfigError
from adloco_p2p.swarm.discovery.invitation import Token
from adloco_p2p.swarm.discovery.join_link import format_link, parse_link, token_of, with_invitation
from adloco_p2p.swarm.p2p.identity import Identity, is_signed, signature
from tests.core.core_values import capacity

RUN = Digest("a" * 64)
AUTHOR, JOINER, THIEF = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
ADDRESS = f"/ip4/203.0.113.7/tcp/4001/p2p/{AUTHOR.peer_id}"


def link_of(token: Token) -> str:
    return with_invitation(format_link(RUN, [ADDRESS]), token.to_text())


def door() -> Door:
    plan = genesis(RUN, [(AUTHOR.peer_id, capacity())], Rules(), signers=[AUTHOR.peer_id])
    return Door(parent=plan, admissions=Admissions(), members=(), digests=(), statements=(), verify=is_signed)


def test_a_link_carries_what_the_door_takes() -> None:
    token = Token.issue(RUN, AUTHOR, seats=3, last_round=7)
    link = link_of(token)
    assert set(link) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:/.,-_")
    assert [str(peer) for peer in parse_link(link).peers] == [ADDRESS]
    text = token_of(["/ip4/203.0.113.9/tcp/1/p2p/" + AUTHOR.peer_id, link])
    assert text is not None
    received = Token.from_text(text, RUN)
    assert received == token
    unsigned = JoinRequest(
        peer=JOINER.peer_id, run=RUN, capacity=capacity(), beat=1, round=0, ticket=received.ticket(JOINER.peer_id), signature=""
    )
    request = replace(unsigned, signature=signature(JOINER, unsigned.payload))
    assert door().problem(decode.decode(JoinRequest, canonical.encode(request), max_bytes=4096)) == ""
    stolen = replace(request, peer=THIEF.peer_id)
    assert "is not made out to" in door().problem(stolen)


def test_a_public_ticket_does_not_hold_the_key() -> None:
    token = Token.issue(RUN, AUTHOR, seats=3, last_round=7)
    public = canonical.encode(token.ticket(JOINER.peer_id))
    assert token.seed.hex().encode() not in public
    assert token.to_text().encode() not in public


def test_a_link_without_an_invitation_has_none() -> None:
    assert token_of([format_link(RUN, [ADDRESS]), ADDRESS]) is None


@pytest.mark.parametrize("damage", ["shorter", "longer", "one letter", "no letters", "other run"])
def test_a_damaged_invitation_is_refused(damage: str) -> None:
    text = Token.issue(RUN, AUTHOR, seats=3, last_round=7).to_text()
    changed = {
        "shorter": text[:-4],
        "longer": text + "AAAA",
        "one letter": ("B" if text[60] == "A" else "A").join([text[:60], text[61:]]),
        "no letters": "\u00e9" * len(text),
        "other run": text,
    }[damage]
    with pytest.raises(ConfigError, match="invitation in the join link is damaged"):
        Token.from_text(changed, Digest("b" * 64) if damage == "other run" else RUN)


def test_two_invitations_in_one_link_are_refused() -> None:
    token = Token.issue(RUN, AUTHOR, seats=3, last_round=7)
    with pytest.raises(ConfigError, match="more than one invitation"):
        parse_link(with_invitation(link_of(token), token.to_text()))
