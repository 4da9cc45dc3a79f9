"""The address of a node's control API, never beyond this machine, and how permitted users find it.

`control/` in the working directory is only for its owner (mode 0700). While a node runs it holds

socket           the unix socket, mode 0600
endpoint.json    what clients need, mode 0600: "unix", or a loopback address and the token that every request must carry
"""

import contextlib
import ipaddress
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from adloco_p2p.errors import ConfigError, NoNodeError, StorageError, SwarmError

MAX_SOCKET_PATH_BYTES = 100
"""The longest path of a socket. Linux takes 107 bytes, macOS 103; grpc adds nothing."""
MAX_ENDPOINT_BYTES = 4096
TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """The parsed setting `control_address`."""

    is_on: bool = True
    address: str | None = None
    """`host:port` on loopback; None: a unix socket where its path is short enough."""


def parse_listen(setting: str) -> Listen:
    """Parse `auto`, `off`, or `IP:PORT` with a loopback address. Raises ConfigError."""
    if setting in ("auto", "off"):
        return Listen(is_on=setting == "auto")
    host, _, port = setting.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        ip = None
    if ip is None or not (port.isdecimal() and int(port) < 1 << 16):
        raise ConfigError(
            f"control_address={setting}: accepted are auto, off, and a loopback address with a port, such as 127.0.0.1:4711"
        )
    if not ip.is_loopback:
        raise ConfigError(
            f"control_address={setting}: anyone at this address could stop the node, so only loopback addresses are"
            " accepted, such as 127.0.0.1:4711; use ssh to control it from another machine",
            code="E220",
        )
    return Listen(address=f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address in the form of grpc, and its token; a unix socket has none, since its file mode protects it."""

    address: str
    token: str | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata that a client sends with every request."""
        return (("authorization", f"Bearer {self.token}"),) if self.token is not None else ()


def choose(workdir: Path, listen: Listen) -> Endpoint:
    """Return the address to listen on, whose port may still be 0. Makes the folder, and removes the files of a killed node.
    Raises StorageError."""
    folder = workdir.absolute() / "control"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        withdraw(workdir)
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror}") from None
    path = folder / "socket"
    if listen.address is None and len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return Endpoint(address=f"unix:{path}")
    return Endpoint(address=listen.address or "127.0.0.1:0", token=secrets.token_urlsafe(TOKEN_BYTES))


def publish(workdir: Path, endpoint: Endpoint) -> None:
    """Publish the address for clients, once the node listens. Raises StorageError."""
    folder = workdir.absolute() / "control"
    document = {"address": "unix" if endpoint.token is None else endpoint.address, "token": endpoint.token}
    try:
        if endpoint.token is None:
            (folder / "socket").chmod(0o600)
        made = folder / "endpoint.json.tmp"
        made.unlink(missing_ok=True)
        number = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w") as file:
            json.dump(document, file)
        made.replace(folder / "endpoint.json")
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror}") from None


def withdraw(workdir: Path) -> None:
    """Remove the address, since no process listens any more."""
    for name in ("endpoint.json", "socket"):
        with contextlib.suppress(FileNotFoundError):
            (workdir / "control" / name).unlink()


def find(workdir: Path) -> Endpoint:
    """Return where the node of the directory listens. Raises SwarmError where none does."""
    path = workdir.absolute() / "control" / "endpoint.json"
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(MAX_ENDPOINT_BYTES))
        address, token = document["address"], document["token"]
        if address != "unix" and parse_listen(address).address is None:  # another user's directory may name any address
            raise ValueError(f"address {address}")  # `auto` and `off` are settings, and would be looked up as names of machines
    except PermissionError:
        raise SwarmError(
            f"{path}: belongs to another user; only the user who started the node may control it", code="E352"
        ) from None
    except FileNotFoundError:
        raise NoNodeError(f"{workdir}: no node runs in this directory") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        raise NoNodeError(f"{path}: unreadable ({error}); start the node again") from None
    return Endpoint(address=_socket_address(path.with_name("socket")) if address == "unix" else address, token=token)


def _socket_address(path: Path) -> str:
    """Return the address of the socket by the client's own path, because the node may see the directory mounted elsewhere."""
    shorter = min((str(path), os.path.relpath(path)), key=len)
    if len(os.fsencode(shorter)) > MAX_SOCKET_PATH_BYTES:
        raise NoNodeError(f"{path}: too long for a socket here; go into the directory and use `--workdir .`")
    return f"unix:{shorter}"
