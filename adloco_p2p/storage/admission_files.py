"""The files of admission in a working directory: invitations that its owner made, its own ticket or proof, pending statements.

address.txt        the link to the run without an invitation, by the last addresses of the node
invitations.txt    secret: one token per line, of every invitation made here (`swarm/discovery/invitation.py`)
ticket.json        the ticket that let this peer in; the peer shows it again when it comes back
proof.json         the last proof of work of this peer, if a seat costs one
statements/        a signer's statements that no plan carries yet, one file each
serial.txt         the highest serial number of these and all earlier ones

Several commands may run at once, beside the node; a command locks the files that it changes in place.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from adloco_p2p import decode
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import ProofOfWork, Statement, Ticket
from adloco_p2p.errors import RemoteProtocolError, StorageError
from adloco_p2p.storage.disk import keep_file, read_text, read_value, replace_file, reported, write_all

MAX_BYTES = 1 << 16
"""The most bytes of a ticket or a statement; both are less than two kilobytes."""


def read_address(workdir: Path) -> str:
    """Return the link in `address.txt`, empty if there is none. Raises StorageError."""
    return read_text(workdir / "address.txt").strip()


def keep_address(workdir: Path, link: str) -> None:
    """Write the link to `address.txt`. Raises StorageError."""
    keep_file(workdir / "address.txt", f"{link}\n".encode("ascii"))


def read_invitations(workdir: Path) -> list[str]:
    """Return the tokens, oldest first, without a last line torn by a crash or a full disk. Raises StorageError."""
    return read_text(workdir / "invitations.txt").split("\n")[:-1]


def keep_invitations(workdir: Path, tokens: list[str]) -> None:
    """Append tokens, in place of a torn last line, whose link nobody has. Raises StorageError."""
    with _locked(workdir / "invitations.txt") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
        write_all(file, "".join(f"{token}\n" for token in tokens).encode("ascii"))


def read_ticket(workdir: Path) -> Ticket | None:
    """Return this peer's ticket, None if there is none. Raises StorageError."""
    return read_value(Ticket, workdir / "ticket.json", max_bytes=MAX_BYTES, remedy="remove it and join with a link")


def keep_ticket(workdir: Path, ticket: Ticket) -> None:
    """Write this peer's ticket. Raises StorageError."""
    keep_file(workdir / "ticket.json", canonical.encode(ticket))


def read_proof(workdir: Path) -> ProofOfWork | None:
    """Return this peer's last proof of work; None if there is none or it is damaged, so that a new one is made. Raises
    StorageError."""
    path = workdir / "proof.json"
    with reported(path), suppress(RemoteProtocolError):
        return decode.decode(ProofOfWork, path.read_bytes(), max_bytes=MAX_BYTES) if path.exists() else None
    return None


def keep_proof(workdir: Path, proof: ProofOfWork) -> None:
    """Write this peer's proof of work. Raises StorageError."""
    keep_file(workdir / "proof.json", canonical.encode(proof))


def take_serial(workdir: Path, *, least: int) -> int:
    """Return a serial number that no other statement of this directory gets, `least` or more. Raises StorageError."""
    with _locked(workdir / "serial.txt") as file:
        taken = file.read(MAX_BYTES).strip()
        serial = max(least, 1 + int(taken)) if taken.isdigit() else least  # a crash may have torn it
        file.truncate(0)
        write_all(file, f"{serial}\n".encode("ascii"))
    return serial


def keep_statement(workdir: Path, statement: Statement) -> None:
    """Write a statement, which the present or the next node in this directory passes on. Raises StorageError."""
    folder = workdir / "statements"
    with reported(folder):
        folder.mkdir(exist_ok=True)
        replace_file(folder / f"{canonical.digest(statement)}.json", canonical.encode(statement))


def read_statements(workdir: Path, *, on_damage: Callable[[Path, StorageError], None] | None = None) -> dict[Path, Statement]:
    """Return, by file, the statements that no plan carries yet, as far as the node has noticed. A file that cannot be read is
    passed to `on_damage` and left out; without `on_damage`, and for the directory, raises StorageError."""
    folder = workdir / "statements"
    with reported(folder):
        paths = sorted(folder.glob("*.json"))
    found = {}
    for path in paths:
        try:
            statement = read_value(Statement, path, max_bytes=MAX_BYTES, remedy="remove it and state it again")
        except StorageError as error:
            if on_damage is None:
                raise
            on_damage(path, error)
        else:
            if statement is not None:
                found[path] = statement
    return found


@contextmanager
def _locked(path: Path) -> Iterator[FileIO]:
    """Open a file, which is made if there is none, for one process at a time; what is written goes to its end. Raises
    StorageError."""
    with reported(path), FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
