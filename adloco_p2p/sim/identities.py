"""The names and signatures of simulated peers, as long as real ones, because their bytes on the wire are simulated, too."""

import hashlib
import re
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar

from adloco_p2p.core.model.scalars import Digest, PeerId

RUN = Digest(hashlib.sha256(b"simulated run").hexdigest())
NAME_CHARS = 52
"""The length of a real peer id."""
PADDING = re.compile("-{40,}")


def name_of(index: int) -> PeerId:
    """Return a name as long as a real one; names sort like their numbers."""
    return PeerId(f"p{index:03d}".ljust(NAME_CHARS, "-"))


def short(text: str) -> str:
    """Return the text with the padding of names removed."""
    return PADDING.sub("", text)


def sign(peer: PeerId, payload: bytes) -> str:
    """Return a made-up signature, as long as a real one."""
    return hashlib.sha512(peer.encode("ascii") + b" signs " + payload).hexdigest()


def verify(peer: PeerId, payload: bytes, signature: str) -> bool:
    return sign(peer, payload) == signature


class Unsigned(Protocol):
    """A dataclass with a signature yet to be made."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def payload(self) -> bytes: ...


AnyUnsigned = TypeVar("AnyUnsigned", bound=Unsigned)


def signed_by(peer: PeerId, unsigned: AnyUnsigned) -> AnyUnsigned:
    return replace(unsigned, signature=sign(peer, unsigned.payload))
