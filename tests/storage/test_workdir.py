"""A working directory belongs to one process at a time, and to one run for good."""

import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adloco_p2p.config.run_config import DataConfig, RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.errors import ConfigError, StorageError
from adloco_p2p.storage.workdir import Workdir, holder_of

RUN = RunConfig()
OTHER = replace(RUN, seed=7, work=WorkRules(inner_steps=64))

TRY = """
import sys
from pathlib import Path
from adloco_p2p.errors import StorageError
from adloco_p2p.storage.workdir import Workdir
try:
    Workdir.open(Path(sys.argv[1]))
except StorageError as error:
    print(error)
else:
    print("opened")
"""

LOOK = """
import fcntl, sys
from pathlib import Path
with (Path(sys.argv[1]) / "lock").open("rb") as file:
    fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    print("looking", flush=True)
    sys.stdin.read()
"""

HOLD_AND_DIE = """
import os, sys
from pathlib import Path
from adloco_p2p.storage.workdir import Workdir
workdir = Workdir.open(Path(sys.argv[1]))
if os.fork() == 0:
    sys.stdin.read()  # a helper that outlives its peer
else:
    print("ready", flush=True)
    os._exit(9)
"""


def tried(path: Path) -> str:
    return subprocess.run([sys.executable, "-c", TRY, str(path)], capture_output=True, text=True, check=True).stdout.strip()


def test_a_fresh_directory_is_made_and_has_no_run(tmp_path: Path) -> None:
    workdir = Workdir.open(tmp_path / "deep" / "peer")
    assert workdir.run is None
    assert (tmp_path / "deep" / "peer").is_dir()
    workdir.close()


def test_the_run_is_kept(tmp_path: Path) -> None:
    workdir = Workdir.open(tmp_path)
    workdir.adopt(RUN)
    assert workdir.run_path.read_bytes() == canonical.encode(RUN)
    workdir.close()
    again = Workdir.open(tmp_path)
    assert again.run == RUN and again.run is not None and again.run.digest == RUN.digest
    again.adopt(RUN)
    again.close()


def test_another_run_is_refused_setting_by_setting(tmp_path: Path) -> None:
    workdir = Workdir.open(tmp_path)
    workdir.adopt(RUN)
    workdir.events_path.write_text("{}\n")
    with pytest.raises(ConfigError) as refusal:
        workdir.adopt(OTHER)
    text = str(refusal.value)
    assert f"holds run {RUN.digest[:16]}, not run {OTHER.digest[:16]}" in text
    assert "seed: 42 here, 7 there" in text and "work.inner_steps: 32 here, 64 there" in text
    assert text.count(" there\n") + text.endswith(" there") == 2
    assert workdir.run_path.read_bytes() == canonical.encode(RUN)
    workdir.close()


@pytest.mark.parametrize("left", ["manifest.bin", "journal.bin", "events.jsonl", "checkpoints/3"])
def test_a_run_that_never_began_gives_way_and_one_that_did_does_not(left: str, tmp_path: Path) -> None:
    workdir = Workdir.open(tmp_path)
    workdir.adopt(RUN)
    workdir.checkpoints_path.mkdir()
    workdir.events_path.touch()
    workdir.adopt(OTHER)  # the user corrected a setting
    assert workdir.run == OTHER
    (tmp_path / left).write_text("something")
    with pytest.raises(ConfigError):
        workdir.adopt(RUN)
    workdir.close()
    again = Workdir.open(tmp_path)
    assert again.run == OTHER
    again.close()


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", canonical.encode(RUN)[:-9], canonical.encode(RUN) + b" "])
def test_a_damaged_run_is_refused_and_the_lock_is_let_go(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(StorageError, match=r"run\.json: damaged, or written by another version"):
        Workdir.open(tmp_path)
    assert (tmp_path / "run.json").read_bytes() == content
    (tmp_path / "run.json").unlink()
    assert tried(tmp_path) == "opened"


def test_a_second_process_is_refused_by_name_until_the_first_closes(tmp_path: Path) -> None:
    workdir = Workdir.open(tmp_path)
    answer = tried(tmp_path)
    assert answer == (
        f"{tmp_path}: in use by another adloco-peer (process {os.getpid()}); stop it, or choose another working directory"
    )
    workdir.close()
    assert tried(tmp_path) == "opened"


def test_a_verb_that_looks_into_the_directory_keeps_no_node_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`holder_of` shares the lock for a moment, longer on a busy machine; a node that started then ended with E404."""
    Workdir.open(tmp_path).close()
    with subprocess.Popen([sys.executable, "-c", LOOK, str(tmp_path)], stdin=-1, stdout=-1) as looking:
        assert looking.stdout is not None and looking.stdout.readline() == b"looking\n"
        monkeypatch.setattr(time, "sleep", lambda seconds: looking.communicate())  # it looks until the node waits for it
        with closing(Workdir.open(tmp_path)):
            assert looking.returncode == 0
            assert tried(tmp_path).startswith(f"{tmp_path}: in use by another adloco-peer (process {os.getpid()})")


def test_a_second_use_in_the_same_program_is_refused_and_lets_nobody_else_in(tmp_path: Path) -> None:
    workdir = Workdir.open(tmp_path)
    with pytest.raises(StorageError, match="in use by this program already") as refusal:
        Workdir.open(tmp_path)
    assert refusal.value.code == "E404"
    workdir.enter("a phase")
    holder = holder_of(tmp_path)
    assert holder is not None and (holder.pid, holder.starting) == (os.getpid(), "a phase")
    assert tried(tmp_path).startswith(f"{tmp_path}: in use by another adloco-peer (process {os.getpid()})")
    workdir.close()
    assert holder_of(tmp_path) is None
    Workdir.open(tmp_path).close()


def test_a_helper_that_outlives_a_killed_peer_does_not_hold_the_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD_AND_DIE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        assert process.wait() == 9
        workdir = Workdir.open(tmp_path)  # the helper still waits for its standard input
        workdir.close()
        process.stdin.close()


def test_every_file_has_its_place(tmp_path: Path) -> None:
    workdir = Workdir.open(tmp_path)
    places = [
        workdir.run_path,
        workdir.identity_path,
        workdir.journal_path,
        workdir.events_path,
        workdir.checkpoints_path,
    ]
    assert len(set(places)) == 5
    assert {place.parent for place in places} == {tmp_path}
    workdir.close()


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "peer").write_text("mine")
    with pytest.raises(StorageError, match="peer: a file is in the way"):
        Workdir.open(tmp_path / "peer")
    with pytest.raises(StorageError, match="below: not a directory"):
        Workdir.open(tmp_path / "peer" / "below")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = Workdir.open(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"run\.json: the disk is full"):
            workdir.adopt(RUN)
    assert workdir.run is None
    assert not list(tmp_path.glob("*.tmp")), "what was written takes no room"
    workdir.adopt(RUN)
    workdir.close()


@pytest.mark.parametrize("begun_offline", [True, False])
def test_a_run_goes_on_as_it_was_begun_offline_or_on_the_network(tmp_path: Path, begun_offline: bool) -> None:
    workdir = Workdir.open(tmp_path)
    for is_offline in (True, False):
        workdir.keep_to(is_offline=is_offline)  # nothing was trained
    workdir.adopt(RUN)
    if not begun_offline:
        workdir.save_manifest(b"signed")
    (workdir.checkpoints_path / "round-000001").mkdir(parents=True)
    workdir.keep_to(is_offline=begun_offline)
    with pytest.raises(ConfigError, match="--offline") as refused:
        workdir.keep_to(is_offline=not begun_offline)
    assert refused.value.code == "E213" and str(tmp_path) in str(refused.value)
    workdir.close()


def test_a_newer_version_goes_on_with_the_protocol_that_the_run_of_the_directory_began_with(tmp_path: Path) -> None:
    newer = replace(RUN, protocol=RUN.protocol + 1)
    with closing(Workdir.open(tmp_path)) as workdir:
        assert workdir.as_begun(newer) == newer
        workdir.adopt(RUN)
        assert workdir.as_begun(newer) == RUN
        assert workdir.as_begun(replace(newer, seed=7)) == replace(RUN, seed=7)


def test_a_run_on_the_embedded_text_goes_on_under_another_python_and_one_on_other_files_does_not(tmp_path: Path) -> None:
    def over(**data: Any) -> RunConfig:
        return replace(RUN, data=DataConfig(**data))

    with closing(Workdir.open(tmp_path / "embedded")) as workdir:
        workdir.adopt(over(digest="1" * 64))
        assert workdir.as_begun(over(digest="2" * 64)) == over(digest="1" * 64)
        of_files = over(source="text", path="text.txt", digest="2" * 64)
        assert workdir.as_begun(of_files) == of_files
    with closing(Workdir.open(tmp_path / "files")) as workdir:
        workdir.adopt(over(source="text", path="text.txt", digest="1" * 64))
        assert workdir.as_begun(of_files) == of_files
