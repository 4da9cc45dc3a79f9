"""The address book, a small JSON file in which a peer keeps the addresses of others and its own ports between two starts.

The book is a cache: if it cannot be read a new one is begun, and the peer needs its bootstrap again.

Names are free, so a flood of strangers would fill the book, and a peer that returns would dial nobody else. So strangers have a
few places of their own, and get none that another peer needs.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le, MaxLen

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.canonical import ADDED
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.decode import decode
from adloco_p2p.errors import ConfigError, RemoteProtocolError, StorageError
from adloco_p2p.swarm.p2p.addresses import MAX_ADDRESS_CHARS, MAX_ADDRESSES, PeerAddress, parse_peer_address

MAX_PEERS = 64
"""Peers whose addresses are kept, the most recent ones."""
MAX_STRANGERS = MAX_PEERS // 4
"""Those of them that may be strangers."""
_MAX_FILE_BYTES = MAX_PEERS * MAX_ADDRESSES * (MAX_ADDRESS_CHARS + 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenPort:
    """The port that was chosen for a listening address with port 0."""

    maddr: Annotated[str, MaxLen(MAX_ADDRESS_CHARS)]
    port: Annotated[int, Ge(1), Le(65535)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    peers: Annotated[tuple[str, ...], MaxLen(MAX_PEERS * MAX_ADDRESSES)] = ()
    """Full addresses, grouped by peer, the most recent peers first."""
    strangers: Annotated[tuple[str, ...], MaxLen(MAX_STRANGERS * MAX_ADDRESSES)] = field(default=(), metadata=ADDED)
    """Those of peers that were not known as members, nor named by the user, likewise."""
    ports: Annotated[tuple[ListenPort, ...], MaxLen(MAX_ADDRESSES)] = ()


class AddressBook:
    """The book in the file at `path`. Every change is written at once, to a temporary file that is then renamed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pages = Pages()
        with contextlib.suppress(OSError, RemoteProtocolError):  # no file yet, or not one of ours; the next change replaces it
            self._pages = decode(Pages, path.read_bytes(), max_bytes=_MAX_FILE_BYTES)

    @property
    def peers(self) -> tuple[PeerAddress, ...]:
        """All addresses, those of strangers last."""
        return (*_parsed(self._pages.peers), *self.strangers)

    @property
    def strangers(self) -> tuple[PeerAddress, ...]:
        return _parsed(self._pages.strangers)

    def port(self, maddr: str) -> int | None:
        """Return the port that `maddr` had at the last start, if it is known."""
        return next((listen.port for listen in self._pages.ports if listen.maddr == maddr), None)

    def add_peers(self, addresses: Iterable[PeerAddress], *, strangers: Iterable[PeerAddress] = ()) -> None:
        """Put these addresses in front, and drop earlier ones of the same peers. A stranger does not take the place of another
        peer, and one that is no stranger any more gets a place as such. Raises StorageError."""
        new, new_strangers = _by_peer(addresses), _by_peer(strangers)
        peers = new | _by_peer(address for address in _parsed(self._pages.peers) if address.peer not in new)
        peers |= {peer: texts for peer, texts in new_strangers.items() if peer in peers and peer not in new}
        others = new_strangers | _by_peer(address for address in self.strangers if address.peer not in new_strangers)
        others = {peer: texts for peer, texts in others.items() if peer not in peers}
        num_peers = min(len(peers), MAX_PEERS)
        self._write(
            replace(
                self._pages,
                peers=_first(peers, num_peers),
                strangers=_first(others, min(MAX_STRANGERS, MAX_PEERS - num_peers)),
            )
        )

    def set_ports(self, ports: Iterable[ListenPort]) -> None:
        """Keep these ports. Raises StorageError."""
        self._write(replace(self._pages, ports=tuple(ports)))

    def _write(self, pages: Pages) -> None:
        if pages == self._pages:
            return
        aside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            aside.write_bytes(canonical.encode(pages))
            aside.replace(self._path)
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror}") from error
        self._pages = pages


def _parsed(texts: Iterable[str]) -> tuple[PeerAddress, ...]:
    addresses = []
    for text in texts:
        with contextlib.suppress(ConfigError):  # written by another version
            addresses.append(parse_peer_address(text))
    return tuple(addresses)


def _by_peer(addresses: Iterable[PeerAddress]) -> dict[PeerId, list[str]]:
    by_peer: dict[PeerId, list[str]] = {}
    for address in addresses:
        by_peer.setdefault(address.peer, []).append(str(address))
    return by_peer


def _first(by_peer: Mapping[PeerId, list[str]], num_peers: int) -> tuple[str, ...]:
    return tuple(text for texts in list(by_peer.values())[:num_peers] for text in texts[:MAX_ADDRESSES])
