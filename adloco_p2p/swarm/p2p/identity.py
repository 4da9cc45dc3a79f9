"""The identity of a peer: an Ed25519 key in a file, and a PeerID that contains the public key, so that anyone can verify.

The p2p daemon reads the same file as its own key (libp2p's private key message), so one key authenticates connections and signs
reports and records. libp2p embeds a whole public key of this kind in the PeerID ("identity multihash", 12D3KooW..., see the
libp2p peer-ids specification), so the PeerID of its author suffices to check a signature.
"""

import os
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from adloco_p2p.core.model.scalars import MAX_PEER_ID_CHARS, PeerId
from adloco_p2p.errors import StorageError
from adloco_p2p.synced import sync_directory

AGREEMENT_CONTEXT = "consensus"
"""The context of signatures for the core, which are valid nowhere else."""
_KEY_BYTES = 32
_PRIVATE_PREFIX = b"\x08\x01\x12\x40"
"""The head of a protobuf message with key type Ed25519 and 64 bytes, the private and the public key."""
_PEER_ID_PREFIX = b"\x00\x24\x08\x01\x12\x20"
"""The head of an identity multihash of 36 bytes with key type Ed25519 and the 32 bytes of the public key."""
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


class Identity:
    """A key pair of this process. `peer_id` is its name among the peers."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.peer_id = peer_id_of(key.public_key().public_bytes_raw())

    @classmethod
    def from_seed(cls, seed: bytes) -> "Identity":
        """Derive an identity from 32 secret bytes. Raises ValueError for another number of bytes."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def public_key(self) -> bytes:
        """The public key, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    @classmethod
    def load_or_create(cls, path: Path) -> "Identity":
        """Load the identity in the file at `path`, or create it if there is none. Never overwrites a file. Raises
        StorageError."""
        with suppress(OSError):  # which loading reports
            if not path.exists():
                _write_once(path, cls(Ed25519PrivateKey.generate())._encoded())
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> "Identity":
        """Load the identity in the file at `path`. Raises StorageError, also if there is none."""
        try:
            info = path.stat()
        except FileNotFoundError:
            raise StorageError(
                f"{path}: missing, and with it the identity of this peer; restore it from a copy", code="E406"
            ) from None
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}", code="E406") from error
        if not stat.S_ISREG(info.st_mode):
            raise StorageError(f"{path}: not a file; the identity of this peer is a key file", code="E406")
        mode = stat.S_IMODE(info.st_mode)
        if mode & 0o077:
            raise StorageError(
                f"{path}: mode {mode:04o} lets others on this machine use the key; run: chmod 600 {path}", code="E406"
            )
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}", code="E406") from error
        return cls(_decoded(data, path))

    def sign(self, context: str, payload: bytes) -> bytes:
        """Return a signature of 64 bytes. `context` names the kind of signed content, so that no signature has two meanings."""
        return self._key.sign(_signed_bytes(context, payload))

    def _encoded(self) -> bytes:
        return _PRIVATE_PREFIX + self._key.private_bytes_raw() + self._key.public_key().public_bytes_raw()


def verify(peer: PeerId, context: str, payload: bytes, signature: bytes) -> bool:
    """Return whether `peer` signed exactly this payload in this context. False for anything malformed."""
    public_key = _public_key(peer)
    if public_key is None:
        return False
    try:
        public_key.verify(signature, _signed_bytes(context, payload))
    except InvalidSignature:
        return False
    return True


def signature(identity: Identity, payload: bytes) -> str:
    """Sign a payload of the core; return the signature in hexadecimal."""
    return identity.sign(AGREEMENT_CONTEXT, payload).hex()


def is_signed(peer: PeerId, payload: bytes, signature: str) -> bool:
    """Return whether `peer` signed this payload for the core; False for anything malformed. Only lower-case hexadecimal counts:
    an order with another spelling of its signature, which anybody can write, would be a new order."""
    try:
        raw = bytes.fromhex(signature)
    except ValueError:
        return False
    return raw.hex() == signature and verify(peer, AGREEMENT_CONTEXT, payload, raw)


def peer_id_of(public_key: bytes) -> PeerId:
    """Return the PeerID of a 32-byte Ed25519 public key."""
    assert len(public_key) == _KEY_BYTES
    number = int.from_bytes(_PEER_ID_PREFIX + public_key, "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = _BASE58[digit] + digits
    return PeerId(_BASE58[0] + digits)  # the first byte is zero and is written as one leading digit


def is_peer_id(text: str) -> bool:
    """Return whether the text is the PeerID of an Ed25519 key, which can sign."""
    return _public_key(text) is not None


def _public_key(peer: str) -> Ed25519PublicKey | None:
    return _known_key(peer) if len(peer) <= MAX_PEER_ID_CHARS else None  # the cache keeps what it is asked for


@lru_cache(maxsize=8192)
def _known_key(peer: str) -> Ed25519PublicKey | None:
    if not peer.startswith(_BASE58[0]) or not set(peer) <= set(_BASE58):
        return None
    number = 0
    for digit in peer:
        number = number * 58 + _BASE58.index(digit)
    size = len(_PEER_ID_PREFIX) + _KEY_BYTES
    if number.bit_length() > 8 * size:
        return None
    raw = number.to_bytes(size, "big")
    if not raw.startswith(_PEER_ID_PREFIX) or peer_id_of(raw[-_KEY_BYTES:]) != peer:
        return None
    return Ed25519PublicKey.from_public_bytes(raw[-_KEY_BYTES:])


def _signed_bytes(context: str, payload: bytes) -> bytes:
    assert context and context.isascii() and context.isprintable()  # a zero byte would make the end ambiguous
    return b"adloco\x00" + context.encode("ascii") + b"\x00" + payload


def _decoded(data: bytes, path: Path) -> Ed25519PrivateKey:
    wanted = len(_PRIVATE_PREFIX) + 2 * _KEY_BYTES
    if len(data) != wanted or not data.startswith(_PRIVATE_PREFIX):
        raise StorageError(
            f"{path}: not an Ed25519 identity ({len(data)} bytes). Restore it from a copy, or remove it for a new one",
            code="E406",
        )
    key = Ed25519PrivateKey.from_private_bytes(data[len(_PRIVATE_PREFIX) : -_KEY_BYTES])
    if key.public_key().public_bytes_raw() != data[-_KEY_BYTES:]:
        raise StorageError(f"{path}: damaged: its two halves do not belong together. Restore it from a copy", code="E406")
    return key


def _write_once(path: Path, data: bytes) -> None:
    """Write and sync a temporary file, then link it to the name; a file that another process made meanwhile is kept."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(aside)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links; the workdir's lock keeps other processes away
            aside.rename(path)
        aside.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise StorageError(f"{path}: cannot write the identity: {error.strerror}", code="E406") from error
