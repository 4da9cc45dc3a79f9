"""What a support bundle holds, and what it must never hold: planted secrets are looked for in every byte of it."""

import base64
import errno
import json
import os
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from adloco_p2p.cli import main
from adloco_p2p.commands import inspect
from adloco_p2p.errors import StorageError
from adloco_p2p.storage import support_bundle
from adloco_p2p.storage.redaction import redacted
from adloco_p2p.storage.support_bundle import MAX_TEXT_BYTES, write_bundle, write_crash
from adloco_p2p.swarm.p2p.identity import Identity

TOKEN = "fJ2kQ0planted0control0token0aa8"
ENVIRONMENT_SECRET = "planted-environment-secret"
PLANTED = {
    "hub token": "hf_plantedPlantedPlanted01",
    "environment": ENVIRONMENT_SECRET,
    "control token": TOKEN,
    "IPv4": "198.51.100.23",
    "IPv6": "2001:db8:77::1f",
    "name in an address": "planted-host.example.org",
    "password in a url": "plantedPassword7",
    "setting": "plantedApiKey99",
    "bearer": "plantedBearer123",
}


def plant(workdir: Path) -> list[str]:
    """A working directory with secrets in every file that could ever be read; returns them as text."""
    identity = Identity.load_or_create(workdir / "identity.key")
    seed = (workdir / "identity.key").read_bytes()[-64:-32]
    keys = [seed.hex(), base64.b64encode(seed).decode().rstrip("="), base64.urlsafe_b64encode(seed).decode().rstrip("=")]
    (workdir / "control").mkdir()
    (workdir / "control" / "endpoint.json").write_text(json.dumps({"address": "127.0.0.1:1", "token": TOKEN}))
    said = " ".join(
        [
            f"use {PLANTED['hub token']}",
            f"dial /ip4/{PLANTED['IPv4']}/tcp/1/p2p/{identity.peer_id}",
            f"or {PLANTED['IPv4']}:31337 or [{PLANTED['IPv6']}]:80 or /ip6/{PLANTED['IPv6']}/udp/9",
            f"/dns4/{PLANTED['name in an address']}/tcp/4",
            f"adloco://{'a' * 64}?peer=/dns/{PLANTED['name in an address']}/tcp/1/p2p/{identity.peer_id}",
            f"https://me:{PLANTED['password in a url']}@host/x",
            f"api_key={PLANTED['setting']}",
            f"Authorization: Bearer {PLANTED['bearer']}",
            f"{TOKEN} {ENVIRONMENT_SECRET} {' '.join(keys)}",
            f"{Path.home()}/planted",
        ]
    )
    for name in ("run.json", "peers.json", "journal.bin"):
        (workdir / name).write_text(json.dumps({"path": said, "token": PLANTED["setting"]}))
    (workdir / "events.jsonl").write_text(json.dumps({"event": "refused", "time": 1.0, "reason": said}) + "\n")
    return [*PLANTED.values(), *keys, f"{Path.home()}/planted", said]


def everything_in(bundle: Path) -> dict[str, str]:
    with zipfile.ZipFile(bundle) as file:
        assert file.testzip() is None
        return {name: file.read(name).decode() for name in file.namelist()}


@pytest.fixture(autouse=True)
def _secret_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", ENVIRONMENT_SECRET)
    monkeypatch.setenv("HOME", "/home/planted-user")


def test_no_planted_secret_is_in_it(tmp_path: Path) -> None:
    secrets = plant(tmp_path)
    bundle = write_crash(tmp_path, RuntimeError((tmp_path / "run.json").read_text()))
    contents = everything_in(bundle)
    assert set(contents) == {"about.json", "files.txt", "crash.txt", "run.json", "events.jsonl"}
    texts = {**contents, "crash.txt on disk": (tmp_path / "crash.txt").read_text()}
    for secret in secrets:
        for name, text in texts.items():
            assert secret not in text, f"{name} holds {secret}"
    assert "RuntimeError" in contents["crash.txt"] and "refused" in contents["events.jsonl"]
    assert "identity.key" in contents["files.txt"]  # that there is one may be known
    assert bundle.stat().st_mode & 0o777 == 0o600


def test_what_is_no_secret_stays() -> None:
    text = (
        '{"tokens":12345,"time":"12:34:56","tokenizer":"bytes","version":"2.13.0","maddr":"/ip4/10.0.0.7/tcp/4001","x":[1,2]}'
    )
    kept = redacted(text, secrets=["short"], home="/")
    assert kept == text.replace("10.0.0.7", "<address>")
    assert redacted("rows[::2] std::vector", secrets=[], home="/root") == "rows[::2] std::vector"


def test_a_secret_is_found_as_json_and_python_spell_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, home = 'planted"\\x\u00e9hidden', "/home/j\u00fcrgen"
    monkeypatch.setenv("SOME_API_KEY", secret)
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr("sys.argv", ["adloco-peer", f"--x={secret}", f"{home}/data"])
    (tmp_path / "events.jsonl").write_text(json.dumps({"event": "refused", "reason": f"{secret} {home}/x"}) + "\n")
    bundle = write_crash(tmp_path, RuntimeError(f"{[secret, home]}"))
    for name, text in everything_in(bundle).items():
        for part in ("planted", "hidden", "rgen"):
            assert part not in text, f"{name}: {text}"
        assert "~" in text or name == "files.txt"


def test_addresses_and_keys_behind_a_colon_or_a_hyphen_are_found() -> None:
    for text in ("ipv4:198.51.100.23:31337: refused", "tcp:198.51.100.23", "::ffff:198.51.100.23"):
        assert "198.51" not in redacted(text, secrets=[], home="/")
    for text in ("X-Api-Key: planted7", "AWS_SECRET_ACCESS_KEY=planted7", "ADLOCO://planted7"):
        assert "planted7" not in redacted(text, secrets=[], home="/")


def test_no_half_of_a_secret_is_left_where_a_long_file_is_cut(tmp_path: Path) -> None:
    end = b"\n" + b"x" * (MAX_TEXT_BYTES - 10 - 1)
    (tmp_path / "events.jsonl").write_bytes(f"{'y' * 99}{ENVIRONMENT_SECRET}".encode() + end)
    assert ENVIRONMENT_SECRET[-10:] not in everything_in(write_bundle(tmp_path))["events.jsonl"]


def test_what_a_running_node_removes_meanwhile_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's folder is listed and gone; a crash of this process is the other case."""
    (tmp_path / "checkpoints" / "round-000003").mkdir(parents=True)
    scan = os.scandir

    def gone(path: str | Path) -> object:
        if str(path).endswith("round-000003"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", gone)
    assert "about.json" in everything_in(write_bundle(tmp_path))


def test_names_that_are_no_text_are_no_obstacle(tmp_path: Path) -> None:
    """Names of files are bytes on Linux; an error quotes them as Python decodes them."""
    name = os.fsdecode(b"\xff.txt")
    try:
        (tmp_path / name).touch()
    except OSError:
        pytest.skip("this file system takes names of text only")
    contents = everything_in(write_crash(tmp_path, FileNotFoundError(name)))
    assert "\\udcff.txt" in contents["files.txt"] and "\\udcff.txt" in contents["crash.txt"]


def test_a_full_disk_keeps_no_part_of_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def contents(workdir: Path) -> Iterator[tuple[str, str]]:
        yield "about.json", "{}"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(support_bundle, "_contents", contents)
    with pytest.raises(StorageError, match="the disk is full"):
        write_bundle(tmp_path)
    assert not list(tmp_path.iterdir())


def test_its_size_is_bounded(tmp_path: Path) -> None:
    line = json.dumps({"event": "round", "time": 1.0, "noise": os.urandom(1000).hex()})
    (tmp_path / "events.jsonl").write_text("\n".join([line] * (3 * MAX_TEXT_BYTES // len(line))) + "\nthe end\n")
    contents = everything_in(write_bundle(tmp_path))
    assert len(contents["events.jsonl"]) == MAX_TEXT_BYTES
    assert contents["events.jsonl"].endswith("the end\n")


def test_a_crash_is_one_line_and_one_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(arguments: object) -> int:
        raise IndexError("nobody\nexpected this")

    monkeypatch.setattr(inspect, "report", report)
    assert main(["report", "--workdir", str(tmp_path / "new"), "--output", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err.splitlines()
    bundle = tmp_path / "new" / "support-bundle.zip"
    assert [line.split(":")[0] for line in said[1:]] == ["  cause", "  remedy"]
    assert said[0].startswith("adloco-peer: E101: IndexError: nobody expected this (test_support_bundle.py:")
    assert said[0].endswith(f"support bundle: {bundle}")
    assert "IndexError" in everything_in(bundle)["crash.txt"]

    bundle.unlink()
    assert main(["bundle", "--workdir", str(tmp_path / "new")]) == 0
    assert "IndexError" in everything_in(bundle)["crash.txt"]  # the last crash is still told


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: unspecified launch failure\nSearch for `cudaErrorLaunchFailure'",
        "CUDA driver error: unknown error",
        "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
        "CUDA out of memory. Tried to allocate 2.00 GiB.",
    ],
)
def test_an_error_of_a_gpu_is_no_fault_of_the_program(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(arguments: object) -> int:
        raise RuntimeError(words)

    monkeypatch.setattr(inspect, "report", report)
    assert main(["report", "--workdir", str(tmp_path / "new"), "--output", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"adloco-peer: E102: RuntimeError: {words[:20]}") and "dmesg" in said and "nvidia-smi" in said


def test_a_crash_where_nothing_can_be_written_shows_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(arguments: object) -> int:
        raise IndexError("unexpected")

    monkeypatch.setattr(inspect, "report", report)
    (tmp_path / "file").touch()
    assert main(["report", "--workdir", str(tmp_path / "file"), "--output", "x"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said and "no support bundle" in said


def test_a_bundle_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "private.jpg").touch()
    for name, told in (("nowhere", "there is no such directory"), ("photos", "no node ran in this directory")):
        assert main(["bundle", "--workdir", str(tmp_path / name)]) == 2
        assert f"E204: --workdir {tmp_path / name}: {told}" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["private.jpg"]


@pytest.mark.parametrize("piece", ["1", "a", "a_", "f:", "token ", "://a", "-----BEGIN KEY-----", "/ip4", "adloco:"])
def test_no_text_of_others_takes_long_to_redact(piece: str) -> None:
    """A run's configuration is text of its author. 60,000 digits took 100 s, which grow with the square of their number."""
    began = time.process_time()
    redacted(piece * (200_000 // len(piece)), secrets=["secret value"], home="/home/user")
    assert time.process_time() - began < 30.0
