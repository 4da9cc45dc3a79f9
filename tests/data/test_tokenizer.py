import json
import socket
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adloco_p2p.config.run_config import TokenizerConfig
from adloco_p2p.data.tokenizer import ByteTokenizer, Tokenizer, open_tokenizer, tokenizer_digest
from adloco_p2p.errors import ConfigError


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """What AutoTokenizer makes of the exported byte tokenizer."""
    directory = tmp_path_factory.mktemp("exported")
    ByteTokenizer().save(directory)
    return open_tokenizer(TokenizerConfig(source=str(directory)))


@given(st.text())
def test_bytes_there_and_back(text: str) -> None:
    [ids] = ByteTokenizer().encode([text])
    assert ids.tolist() == list(text.encode())
    assert ByteTokenizer().decode(ids) == text


def test_decoding_what_no_text_encodes_to() -> None:
    assert ByteTokenizer().decode([104, 105, 256, 33]) == "hi!"
    assert ByteTokenizer().decode([0xC3]) == "\ufffd"


def test_a_lone_surrogate_does_not_stop_a_run() -> None:
    assert [ids.tolist() for ids in ByteTokenizer().encode(["a\ud800b"])] == [[97, 63, 98]]


@given(text=st.text())
def test_exported_tokenizer_gives_the_same_ids(exported: Tokenizer, text: str) -> None:
    assert exported.encode([text])[0].tolist() == ByteTokenizer().encode([text])[0].tolist()
    assert exported.decode(exported.encode([text])[0]) == text


def test_exported_tokenizer_has_the_same_vocabulary(exported: Tokenizer) -> None:
    assert (exported.vocab_size, exported.end_of_document) == (257, 256)
    assert exported.decode([104, 105, 256, 33]) == "hi!"


def test_text_that_spells_a_special_token_stays_text(exported: Tokenizer) -> None:
    [ids] = exported.encode(["a <|endoftext|> b"])
    assert 256 not in ids and exported.decode(ids) == "a <|endoftext|> b"


def test_fingerprint_follows_the_vocabulary(exported: Tokenizer, tmp_path: Path) -> None:
    ByteTokenizer().save(tmp_path)
    assert open_tokenizer(TokenizerConfig(source=str(tmp_path))).fingerprint() == exported.fingerprint()
    settings = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = settings["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    changed = open_tokenizer(TokenizerConfig(source=str(tmp_path)))
    assert np.array_equal(changed.encode(["ab"])[0], [98, 97])
    assert changed.fingerprint() != exported.fingerprint()


def test_a_tokenizer_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a machine without a network is not kept waiting: one question for the hub's name, no retries."""
    asked: list[object] = []

    def resolve(host: object, *_: object, **__: object) -> list[object]:
        asked.append(host)
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ConfigError, match=r"tokenizer\.source: .*nowhere.* no such directory"):
        open_tokenizer(TokenizerConfig(source=str(tmp_path / "nowhere")))
    with pytest.raises(
        ConfigError, match=r"tokenizer\.source, .*: 'nobody/nothing' cannot be .*: no directory .* here; revision 'v1'"
    ):
        open_tokenizer(TokenizerConfig(source="nobody/nothing", revision="v1"))
    assert len(asked) <= 1  # none where names are a proxy's business


def test_a_tokenizer_that_cannot_end_a_document(tmp_path: Path) -> None:
    ByteTokenizer().save(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": None}))
    with pytest.raises(ConfigError, match=r"no end-of-text token"):
        open_tokenizer(TokenizerConfig(source=str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "[]"),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "[" * 100_000),
        ("tokenizer_config.json", "[" * 100_000),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"tokenizer_class": 5}'),
        ("tokenizer_config.json", '{"eos_token": ["a"]}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 1}}'),
        ("tokenizer_config.json", '{"tokenizer_class": "CanineTokenizer"}'),
    ],
)
def test_a_tokenizer_of_others_that_is_none_is_refused(tmp_path: Path, name: str, content: str) -> None:
    """In a run of others its files come from them, and anything may stand there."""
    ByteTokenizer().save(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.source\b.*: ") as refused:
        tokenizer_digest(TokenizerConfig(source=str(tmp_path)))
    assert refused.value.code == "E208"


def test_a_pattern_that_takes_too_many_steps_on_a_text_is_a_named_error(tmp_path: Path) -> None:
    """Rust reports it by an error that is no Exception."""
    ByteTokenizer().save(tmp_path)
    path = tmp_path / "tokenizer.json"
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pre_tokenizer": pattern}))
    tokenizer = open_tokenizer(TokenizerConfig(source=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"tokenizer\.source: .* fails: ") as refused:
        tokenizer.encode(["a" * 40 + "b"])
    assert refused.value.code == "E208"
