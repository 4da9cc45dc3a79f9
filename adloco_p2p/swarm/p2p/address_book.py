"""The address book, a small JSON file in which a peer keeps the addresses of others and its own ports between two starts.

The book is a cache: if it cannot be read a new one is begun, and the peer needs its bootstrap again.
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le, MaxLen

from adloco_p2p.core.model import canonical
from adloco_p2p.decode import decode
from adloco_p2p.errors import ConfigError, RemoteProtocolError, StorageError
from adloco_p2p.swarm.p2p.addresses import MAX_ADDRESS_CHARS, MAX_ADDRESSES, PeerAddress, parse_peer_address

MAX_PEERS = 64
"""Peers whose addresses are kept, the most recent ones."""
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
        addresses = []
        for text in self._pages.peers:
            try:
                addresses.append(parse_peer_address(text))
            except ConfigError:  # written by another version
                continue
        return tuple(addresses)

    def port(self, maddr: str) -> int | None:
        """Return the port that `maddr` had at the last start, if it is known."""
        return next((listen.port for listen in self._pages.ports if listen.maddr == maddr), None)

    def add_peers(self, addresses: Iterable[PeerAddress]) -> None:
        """Put these addresses in front, and drop earlier ones of the same peers. Raises StorageError."""
        by_peer: dict[str, list[str]] = {}
        for address in addresses:
            by_peer.setdefault(address.peer, []).append(str(address))
        new = dict(by_peer)
        for address in self.peers:
            if address.peer not in new:
                by_peer.setdefault(address.peer, []).append(str(address))
        kept = list(by_peer.values())[:MAX_PEERS]
        self._write(replace(self._pages, peers=tuple(text for texts in kept for text in texts[:MAX_ADDRESSES])))

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
