"""Invitations as they travel: the token in a join link, which lets its holder take a seat.

A token holds the private part of an invitation's key, so every holder may join until its seats are taken. A joiner signs its
own peer id with that key, which itself is sent to no peer.
"""

import base64
import binascii
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from adloco_p2p.core.model.ledger_entry import Invitation, Ticket
from adloco_p2p.core.model.scalars import LARGEST_COUNT, MAX_ROSTER, Digest, PeerId
from adloco_p2p.errors import ConfigError
from adloco_p2p.swarm.p2p.identity import Identity, is_signed, peer_id_of, signature

_FORM = struct.Struct(">B32s32sHQ64s")
"""Version, private part of the key, public key of the signer, seats, last round, signature of the signer."""
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """An invitation with the private part of its key."""

    invitation: Invitation
    seed: bytes
    signer_key: bytes
    """The signer's public key, 32 bytes."""

    @classmethod
    def issue(cls, run: Digest, signer: Identity, *, seats: int, last_round: int) -> "Token":
        """Make a new invitation of this signer."""
        assert 1 <= seats <= MAX_ROSTER
        seed = os.urandom(32)
        unsigned = Invitation(
            run=run,
            signer=signer.peer_id,
            key=Identity.from_seed(seed).peer_id,
            seats=seats,
            last_round=last_round,
            signature="",
        )
        signed = replace(unsigned, signature=signature(signer, unsigned.payload))
        return cls(invitation=signed, seed=seed, signer_key=signer.public_key)

    def ticket(self, peer: PeerId) -> Ticket:
        """Return the invitation, made out to the peer."""
        unsigned = Ticket(invitation=self.invitation, signature="")
        return replace(unsigned, signature=signature(Identity.from_seed(self.seed), unsigned.payload(peer)))

    def to_text(self) -> str:
        """Encode the token in letters, digits, `-` and `_`."""
        invitation = self.invitation
        raw = _FORM.pack(
            _VERSION,
            self.seed,
            self.signer_key,
            invitation.seats,
            invitation.last_round,
            bytes.fromhex(invitation.signature),
        )
        return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")

    @classmethod
    def from_text(cls, text: str, run: Digest) -> "Token":
        """Decode the token of a link to this run. Raises ConfigError for a damaged token and for one of another run."""
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            version, seed, signer_key, seats, last_round, signed = _FORM.unpack(raw)
        except (binascii.Error, ValueError, struct.error):
            raise ConfigError("the invitation in the join link is damaged; copy the whole link", code="E206") from None
        invitation = Invitation(
            run=run,
            signer=peer_id_of(signer_key),
            key=Identity.from_seed(seed).peer_id,
            seats=seats,
            last_round=last_round,
            signature=signed.hex(),
        )
        is_well_formed = version == _VERSION and 1 <= seats <= MAX_ROSTER and last_round <= LARGEST_COUNT
        if not is_well_formed or not is_signed(invitation.signer, invitation.payload, invitation.signature):
            raise ConfigError(
                f"the invitation in the join link is damaged, or is not for run {run[:16]}; copy the whole link", code="E206"
            )
        return cls(invitation=invitation, seed=seed, signer_key=signer_key)


def tokens_for(run: Digest, texts: Iterable[str]) -> list[Token]:
    """Decode the tokens of this run. Leaves out those of another run: one that never began gave its directory to this one."""
    tokens = []
    for text in texts:
        with suppress(ConfigError):
            tokens.append(Token.from_text(text, run))
    return tokens
