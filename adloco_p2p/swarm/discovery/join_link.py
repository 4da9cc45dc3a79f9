"""Join links: adloco://RUN,ADDRESS,ADDRESS - a run's digest and peers to begin with. Pure.

No character of a link means anything to a shell, so it may be pasted without quotes. The older form
adloco://RUN?peer=ADDRESS&peer=ADDRESS is read as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from adloco_p2p.core.model.types import Digest, is_digest
from adloco_p2p.errors import ConfigError
from adloco_p2p.swarm.p2p.addresses import MAX_ADDRESSES, PeerAddress, parse_peer_addresses

SCHEME = "adloco"
MAX_LINK_CHARS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinLink:
    run: Digest
    peers: tuple[PeerAddress, ...]


def is_link(text: str) -> bool:
    """Whether `text` wants to be a link rather than an address."""
    return text.strip().lower().startswith(f"{SCHEME}:")


def format_link(run: Digest, addresses: Sequence[str]) -> str:
    """The link to a run through peers at these full addresses (with /p2p/)."""
    assert is_digest(run)
    return ",".join([f"{SCHEME}://{run}", *map(str, parse_peer_addresses(addresses[:MAX_ADDRESSES]))])


def parse_link(text: str) -> JoinLink:
    """Raises ConfigError with everything that is wrong."""
    text = text.strip()
    if len(text) > MAX_LINK_CHARS:
        raise ConfigError(f"the join link is longer than {MAX_LINK_CHARS} characters", code="E206")
    scheme, _, rest = text.partition("://")
    if scheme.lower() != SCHEME:
        raise ConfigError(f"{text!r} is not a join link; one looks like {SCHEME}://RUN,ADDRESS", code="E206")
    run, *addresses = _old_parts(text) if "?" in rest else rest.rstrip(",").split(",")
    if not is_digest(run):
        raise ConfigError(f"{text!r}: the run must be 64 hexadecimal digits in lower case", code="E206")
    if len(addresses) > MAX_ADDRESSES:
        raise ConfigError(f"the join link has more than {MAX_ADDRESSES} addresses", code="E206")
    return JoinLink(run=Digest(run), peers=parse_peer_addresses(addresses))


def _old_parts(text: str) -> list[str]:
    """Run and addresses of a link of the older form. Raises ConfigError."""
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
    """The arguments of `--initial-peers`: addresses and join links, mixed. Raises ConfigError; links must lead to one run."""
    links = [parse_link(text) for text in texts if is_link(text)]
    runs = sorted({link.run for link in links})
    if len(runs) > 1:
        raise ConfigError(f"the join links lead to different runs: {', '.join(runs)}", code="E205")
    addresses = parse_peer_addresses(text for text in texts if not is_link(text))
    linked = [peer for link in links for peer in link.peers]
    if links and not linked and not addresses:
        raise ConfigError(
            f"{links[0].run[:16]}: the join link names the run but no address of a peer, so its end was lost; copy the whole"
            " line and put it in quotes",
            code="E206",
        )
    return (runs[0] if runs else None), tuple(dict.fromkeys([*addresses, *linked]))
