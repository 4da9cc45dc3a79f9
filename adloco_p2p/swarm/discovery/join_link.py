"""Join links of the form adloco://RUN,ADDRESS,ADDRESS,invite:TOKEN: a run's digest, its first peers, an invitation. Pure.

A link without an invitation only leads to the run, which is enough where everybody may join. One with an invitation lets its
holder in, so it is shown only to the user who made it. No character of a link has a meaning to a shell, so it may be pasted
without quotes. The older form adloco://RUN?peer=ADDRESS&peer=ADDRESS is read as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from adloco_p2p.core.model.scalars import Digest, is_digest
from adloco_p2p.errors import ConfigError
from adloco_p2p.swarm.p2p.addresses import MAX_ADDRESSES, PeerAddress, parse_peer_addresses

SCHEME = "adloco"
INVITATION = "invite:"
MAX_LINK_CHARS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinLink:
    run: Digest
    peers: tuple[PeerAddress, ...]
    token: str | None = None
    """The invitation in the form of `invitation.py`."""


def is_link(text: str) -> bool:
    """Return whether `text` has the form of a link rather than of an address."""
    return text.strip().lower().startswith(f"{SCHEME}:")


def _shown(text: str) -> str:
    """Return the text for an error without an invitation, which lets its reader in."""
    kept, found, _ = text.partition(INVITATION)
    return repr(f"{kept}{found}..." if found else text)


def format_link(run: Digest, addresses: Sequence[str]) -> str:
    """Return the link to a run through peers at these full addresses (with /p2p/)."""
    assert is_digest(run)
    return ",".join([f"{SCHEME}://{run}", *map(str, parse_peer_addresses(addresses[:MAX_ADDRESSES]))])


def with_invitation(link: str, token: str) -> str:
    """Return the link with an invitation, which lets its holder in."""
    return f"{link},{INVITATION}{token}"


def parse_link(text: str) -> JoinLink:
    """Parse a join link of either form, also one that was copied with line breaks. Raises ConfigError."""
    text = "".join(text.split())
    if len(text) > MAX_LINK_CHARS:
        raise ConfigError(f"the join link is longer than {MAX_LINK_CHARS} characters", code="E206")
    scheme, _, rest = text.partition("://")
    if scheme.lower() != SCHEME:
        raise ConfigError(f"{_shown(text)} is not a join link; one looks like {SCHEME}://RUN,ADDRESS", code="E206")
    run, *parts = _old_parts(text) if "?" in rest else rest.rstrip(",").split(",")
    addresses = [part for part in parts if not part.startswith(INVITATION)]
    tokens = [part.removeprefix(INVITATION) for part in parts if part.startswith(INVITATION)]
    if not is_digest(run):
        raise ConfigError(f"{_shown(text)}: the run must be 64 hexadecimal digits in lower case", code="E206")
    if len(addresses) > MAX_ADDRESSES:
        raise ConfigError(f"the join link has more than {MAX_ADDRESSES} addresses", code="E206")
    if len(tokens) > 1:
        raise ConfigError("the join link has more than one invitation; use the link of one of them", code="E206")
    return JoinLink(run=Digest(run), peers=parse_peer_addresses(addresses), token=tokens[0] if tokens else None)


def _old_parts(text: str) -> list[str]:
    """Return run and addresses of a link of the older form. Raises ConfigError."""
    try:
        parts = urlsplit(text)
        fields = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), max_num_fields=MAX_ADDRESSES)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a join link: {error}", code="E206") from None
    unknown = sorted({name for name, _ in fields} - {"peer"})
    if unknown or parts.path not in ("", "/") or parts.fragment:
        raise ConfigError(f"{text!r} is not a join link; one looks like {SCHEME}://RUN,ADDRESS", code="E206")
    return [parts.netloc, *(value for _, value in fields)]


def split_initial_peers(texts: Sequence[str]) -> tuple[Digest | None, tuple[PeerAddress, ...]]:
    """Return the run, if a link names one, and the addresses among the arguments of `--initial-peers`, which may be addresses
    and join links. Raises ConfigError, also if links lead to different runs."""
    links = [parse_link(text) for text in texts if is_link(text)]
    runs = sorted({link.run for link in links})
    if len(runs) > 1:
        raise ConfigError(f"the join links lead to different runs: {', '.join(runs)}", code="E205")
    others = [text for text in texts if not is_link(text)]
    pieces = [text for text in others if "," in text]  # no address has one
    if pieces:
        raise ConfigError(
            *(
                f"{_shown(text)}: a join link begins with {SCHEME}://, and this is a piece of one, or has another beginning;"
                " copy the whole link and put it in quotes"
                for text in pieces
            ),
            code="E206",
        )
    addresses = parse_peer_addresses(others)
    linked = [peer for link in links for peer in link.peers]
    if links and not linked and not addresses:
        raise ConfigError(
            f"{links[0].run[:16]}: the join link names the run but no address of a peer, so its end was lost; copy the whole"
            " line and put it in quotes",
            code="E206",
        )
    return (runs[0] if runs else None), tuple(dict.fromkeys([*addresses, *linked]))


def wanted_run(linked: Digest | None, named: str | None) -> str | None:
    """Return the run that a link and `--run` ask for: a digest or its beginning. Raises ConfigError if they are two runs."""
    if linked is not None and named is not None and not linked.startswith(named):
        raise ConfigError(
            f"--run {named}: the join link leads to run {linked[:16]}; leave --run out, or give a link to the other run",
            code="E205",
        )
    return linked or named


def check_held_run(workdir: Path, held: str, *, wanted: str | None) -> None:
    """Raise ConfigError if the directory holds another run than `wanted`, a digest or its beginning."""
    if wanted is not None and not held.startswith(wanted):
        raise ConfigError(f"--workdir {workdir}: holds run {held[:16]}, not {wanted[:16]}; name another one", code="E203")


def token_of(texts: Sequence[str]) -> str | None:
    """Return the first invitation among the arguments of `--initial-peers`, if any. Raises ConfigError."""
    tokens = (parse_link(text).token for text in texts if is_link(text))
    return next((token for token in tokens if token is not None), None)
