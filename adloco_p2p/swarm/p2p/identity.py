"""The identity of a peer: an Ed25519 key in a file, and a PeerID that holds the public key, so that anyone can verify.

The file is what the p2p daemon reads as its own key (libp2p's private key message): one key proves the connection and signs
reports and records. libp2p writes a public key of this kind into the PeerID whole ("identity multihash", 12D3KooW...), see
the libp2p peer-ids specification; so a signature is checked with nothing but the PeerID of its author.
"""

import os
import stat
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import StorageError

AGREEMENT_CONTEXT = "consensus"
"""A signature for the core is valid nowhere else."""
_KEY_BYTES = 32
_PRIVATE_PREFIX = b"\x08\x01\x12\x40"
"""Protobuf: key type Ed25519, then 64 bytes: the private and the public key."""
_PEER_ID_PREFIX = b"\x00\x24\x08\x01\x12\x20"
"""Identity multihash of 36 bytes: key type Ed25519, then the 32 bytes of the public key."""
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_MAX_PEER_ID_CHARS = 64


class Identity:
    """A key pair of this process. `peer_id` is its name among the peers."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.peer_id = peer_id_of(key.public_key().public_bytes_raw())

    @classmethod
    def from_seed(cls, seed: bytes) -> "Identity":
        """Of 32 secret bytes. Raises ValueError for another number of them."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def public_key(self) -> bytes:
        """32 bytes."""
        return self._key.public_key().public_bytes_raw()

    @classmethod
    def load_or_create(cls, path: Path) -> "Identity":
        """The identity in the file at `path`, made on the first call. Raises StorageError; never overwrites a file."""
        try:
            info = path.stat()
        except FileNotFoundError:
            identity = cls(Ed25519PrivateKey.generate())
            _write_once(path, identity._encoded())
            return cls.load_or_create(path)
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
        """64 bytes. `context` names the kind of signed content, so that no signature means two things."""
        return self._key.sign(_signed_bytes(context, payload))

    def _encoded(self) -> bytes:
        return _PRIVATE_PREFIX + self._key.private_bytes_raw() + self._key.public_key().public_bytes_raw()


def verify(peer: PeerId, context: str, payload: bytes, signature: bytes) -> bool:
    """Whether `peer` signed exactly this, in this context. False for anything malformed."""
    public_key = _public_key(peer)
    if public_key is None:
        return False
    try:
        public_key.verify(signature, _signed_bytes(context, payload))
    except InvalidSignature:
        return False
    return True


def signature(identity: Identity, payload: bytes) -> str:
    """Of what the core signs, hexadecimal."""
    return identity.sign(AGREEMENT_CONTEXT, payload).hex()


def is_signed(peer: PeerId, payload: bytes, signature: str) -> bool:
    """Whether `peer` signed this for the core; False for anything malformed. Only one spelling of a signature counts: with
    another one, which anybody can write, an order of a signer would be a new order."""
    try:
        raw = bytes.fromhex(signature)
    except ValueError:
        return False
    return raw.hex() == signature and verify(peer, AGREEMENT_CONTEXT, payload, raw)


def peer_id_of(public_key: bytes) -> PeerId:
    """PeerID of a 32-byte Ed25519 public key."""
    assert len(public_key) == _KEY_BYTES
    number = int.from_bytes(_PEER_ID_PREFIX + public_key, "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = _BASE58[digit] + digits
    return PeerId(_BASE58[0] + digits)  # the first byte is zero and is written as one leading digit


def is_peer_id(text: str) -> bool:
    """Whether the text is the id of a peer of this network, whose key can sign."""
    return _public_key(text) is not None


@lru_cache(maxsize=8192)
def _public_key(peer: str) -> Ed25519PublicKey | None:
    if len(peer) > _MAX_PEER_ID_CHARS or not peer.startswith(_BASE58[0]) or not set(peer) <= set(_BASE58):
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
    assert context and context.isascii() and context.isprintable()  # no zero byte: the end of the context is unambiguous
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
    """Write aside, sync, then give it the name, unless another process was faster: then that one's key is kept."""
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
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StorageError(f"{path}: cannot write the identity: {error.strerror}", code="E406") from error
