import stat

import pytest
from hivemind.p2p import PeerID

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import StorageError
from adloco_p2p.swarm.p2p.identity import Identity, is_signed, peer_id_of, signature, verify


@pytest.fixture
def identity(tmp_path):
    return Identity.load_or_create(tmp_path / "identity.key")


def test_the_same_file_gives_the_same_peer(tmp_path):
    path = tmp_path / "new" / "identity.key"
    first = Identity.load_or_create(path)
    data = path.read_bytes()
    assert Identity.load_or_create(path).peer_id == first.peer_id
    assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.key"]


def test_the_peer_id_is_libp2ps_form_of_the_public_key():
    # RFC 8032, test 1: its public key; the PeerID was computed with hivemind's base58 from the libp2p specification's prefix
    public_key = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    peer = peer_id_of(public_key)
    assert PeerID.from_base58(peer).to_bytes() == bytes.fromhex("002408011220") + public_key
    assert peer.startswith("12D3KooW")


def test_a_signature_holds_for_its_author_context_and_payload_only(identity, tmp_path):
    other = Identity.load_or_create(tmp_path / "other.key")
    signature = identity.sign("vote", b"payload")
    assert verify(identity.peer_id, "vote", b"payload", signature)
    assert not verify(other.peer_id, "vote", b"payload", signature)
    assert not verify(identity.peer_id, "report", b"payload", signature)
    assert not verify(identity.peer_id, "vote", b"payloae", signature)
    assert not verify(identity.peer_id, "vote", b"payload", signature[:-1])
    assert not verify(identity.peer_id, "vote", b"payload", b"")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12D3KooW",
        "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",  # the digest of an RSA key: holds no key
        "1" * 64,
        "12D3KooWQkxwZWd7pAqo4nri2UXpypCziQafHx7YoEtdZBsauL0O",  # 0 and O are not in base58
        "z" * 52,
    ],
)
def test_what_holds_no_key_verifies_nothing(identity, text):
    assert not verify(PeerId(text), "vote", b"payload", identity.sign("vote", b"payload"))


def test_a_name_with_a_character_too_many_verifies_nothing(identity):
    signature = identity.sign("vote", b"payload")
    for text in ("1" + identity.peer_id, identity.peer_id + "1"):
        assert not verify(PeerId(text), "vote", b"payload", signature)


@pytest.mark.parametrize("spelled", [str.upper, " ".join, lambda text: f"{text} ", lambda text: f"{text[:2]}\n{text[2:]}"])
def test_a_signature_has_one_spelling(identity, spelled):
    made = signature(identity, b"payload")
    assert is_signed(identity.peer_id, b"payload", made)
    assert not is_signed(identity.peer_id, b"payload", spelled(made))


def test_a_key_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "identity.key"
    Identity.load_or_create(path)
    path.chmod(0o640)
    with pytest.raises(StorageError, match=r"mode 0640.*chmod 600"):
        Identity.load_or_create(path)


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x08\x01\x12\x40" + bytes(63), b"\x08\x00\x12\x40" + bytes(64)])
def test_garbage_is_refused_and_kept(tmp_path, data):
    path = tmp_path / "identity.key"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(StorageError, match="not an Ed25519 identity"):
        Identity.load_or_create(path)
    assert path.read_bytes() == data


def test_a_key_whose_halves_differ_is_refused(tmp_path):
    path = tmp_path / "identity.key"
    Identity.load_or_create(path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match="damaged"):
        Identity.load_or_create(path)


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(StorageError, match="not a file"):
        Identity.load_or_create(tmp_path)


def test_loading_makes_no_identity(tmp_path):
    """A signer whose key is gone would get the name of nobody."""
    with pytest.raises(StorageError, match="missing, and with it the identity of this peer; restore it from a copy"):
        Identity.load(tmp_path / "identity.key")
    assert not any(tmp_path.iterdir())
    made = Identity.load_or_create(tmp_path / "identity.key")
    assert Identity.load(tmp_path / "identity.key").peer_id == made.peer_id
